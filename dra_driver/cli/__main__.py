"""`python -m dra_driver.cli` is `dra-driver`."""

from dra_driver.cli import main

main()
