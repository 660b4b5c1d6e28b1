"""Write what is made in the pages: `python -m tests.docs`."""

from tests.docs import metrics
from tests.docs.fields import PAGES, made


def main() -> None:
    """Write all pages with tables of fields or metrics."""
    for path in PAGES:
        path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
    text = metrics.made(metrics.PAGE.read_text(encoding="utf-8"))
    metrics.PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
