"""The step `mig` in a process of its own: arguments ROOT DATA WORK FILE.

WORK is as `apply`, `undo` or `apply+undo`. FILE holds the claim's record; what `apply` gives is
printed. Failpoints are as in the plugin: `prepare:mig/…`, `unprepare:mig/…`.
"""

import os
import sys
from pathlib import Path

from dra_driver.config import Settings
from dra_driver.host import failpoints_of
from dra_driver.mig import MigEffect
from dra_driver.nvml import Discovery
from dra_driver.state import ClaimRecord
from dra_driver.telemetry import Metrics


def main(root: Path, data: Path, work: str, file: Path) -> None:
    settings = Settings(
        node_name="node-a",
        driver_root=root,
        container_driver_root=root,
        host_root=root,
        plugins_folder=data.parent,
        driver_name=data.name,
        poll_seconds=3600,
    )
    discovery = Discovery(settings, Metrics(), lambda _: None, lambda _: None)
    discovery.start()
    discovery.look(60)
    effect = MigEffect(discovery, settings, list)
    record = ClaimRecord.model_validate_json(file.read_text())
    for step in work.split("+"):
        if step == "apply":
            with failpoints_of("prepare:mig"):
                record = effect.apply(record)
            print(record.model_dump_json(), flush=True)
        else:
            with failpoints_of("unprepare:mig"):
                effect.undo(record)
    os._exit(0)  # the kernel closes all at once; `stop` waits for the thread of events


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
