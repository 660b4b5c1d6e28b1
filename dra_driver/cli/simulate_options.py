"""What the commands of `dra-driver simulate` have in common: options, and finding the GPU meant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from dra_driver.model.errors import SettingInvalid
from dra_driver.model.quantity import Quantity
from dra_driver.simulator.native_library import WHOLE_GPU, SimulatorError
from dra_driver.simulator.node import Node

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


class Bytes(click.ParamType[int]):
    """An amount of memory such as 4Gi."""

    name = "amount"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Give the number of bytes."""
        try:
            amount = int(Quantity.parse(str(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if amount < 0:
            self.fail(f"{value} is negative", param, ctx)
        return amount


root_argument = click.argument("root", type=_FOLDER)
gpu_option = click.option(
    "--gpu", "gpu_text", required=True, metavar="N", help="Number in PCI order, UUID or PCI bus id."
)


def partition_options(function: _Function) -> _Function:
    """--gi and --ci: one partition of the GPU rather than all of it."""
    for name, what in (("--ci", "Compute instance"), ("--gi", "GPU instance")):
        option = click.option(name, type=click.IntRange(min=0), help=f"{what} id; default: none.")
        function = option(function)
    return function


def instance(wanted: int | None) -> int:
    """Give an instance id as the simulator takes it."""
    return WHOLE_GPU if wanted is None else wanted


def position(node: Node, text: str) -> int:
    """Position of the GPU that the user means.

    Raises:
        SettingInvalid: there is none; the message tells which there are.

    """
    count = len(node.show()["gpus"])
    if text.isdigit():
        if int(text) >= count:
            there = f"GPUs 0 to {count - 1}" if count else "no GPU"
            raise SettingInvalid(f"--gpu {text}: the node has {there}")
        return int(text)
    try:
        return node.state.find_gpu(text)
    except SimulatorError as error:
        raise SettingInvalid(f"--gpu {text}: {error}") from error
