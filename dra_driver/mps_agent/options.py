"""Settings of the agent's process."""

from dataclasses import dataclass

from dra_driver.config import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """All flags of `dra-driver mps-agent`; `settings` has those that the plugin has, too."""

    settings: Settings
    tmpfs: bool = True  # else clients share a plain folder as `/dev/shm`, which needs no root
    ready_seconds: float = 41.0  # that a daemon has until it answers; the kubelet waits 45 s
    poll_seconds: float = 10.0  # between two looks at a daemon
    first_pause: float = 1.0  # before another daemon is tried; it doubles each time
