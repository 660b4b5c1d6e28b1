"""Write what is made of the chart, and the plain manifests: `python -m tests.chart`."""

import tempfile
from pathlib import Path

from tests.chart.documents import made
from tests.chart.helm import Helm, plain
from tests.cluster.binaries import HELM, build_tool


def main() -> None:
    """Write all files: first those of the chart, of which Helm renders the manifests."""
    _write(made())
    with tempfile.TemporaryDirectory() as home:
        _write(plain(Helm(build_tool(HELM)["helm"], Path(home))))


def _write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
