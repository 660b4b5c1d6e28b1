"""How a process that serves is told to end."""

import os
import signal
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def told_to_stop() -> int:
    """Descriptor that becomes readable with the first SIGTERM or SIGINT; the second one kills.

    A pipe, not a lock: a signal may come while this thread holds any lock. The interpreter itself
    writes to it: a handler in Python would not run until the read returns if the signal came just
    before the read began.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: signal.signal(number, signal.SIG_DFL))
    return reading
