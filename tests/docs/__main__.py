"""Write what is made in the pages: `python -m tests.docs`."""

from tests.docs.fields import PAGES, made


def main() -> None:
    """Write all pages with tables of fields."""
    for path in PAGES:
        path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
