"""Which of several named configurations counts on a node: pure, without folder or API."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.model.errors import SettingInvalid

CONFIG_LABEL: Final = "nvidia.com/dra.config"  # of the Node; its value is the name of an entry
FALLBACK_STRATEGIES: Final = ("named", "single", "empty")  # the device plugin's words
FALLBACK_NAME: Final = "default"  # that `named` looks for
_SHOWN: Final = 20  # names in a message


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry, or the driver's defaults, and why."""

    name: str  # of the entry; empty: none, so the defaults
    by: str  # label, default, or a fallback strategy
    why: str  # for people


def choose(
    wanted: str, names: Collection[str], default: str = "", strategies: Sequence[str] = ()
) -> Choice:
    """Choose by the value of the label, else by `default`, else by the strategies in order.

    An empty text is as if nothing were given. Raises SettingInvalid when what was named does not
    exist; the message lists what does.
    """
    if wanted:
        _check(f"label {CONFIG_LABEL}", wanted, names)
        return Choice(wanted, "label", f"the Node's label {CONFIG_LABEL} names it")
    unlabelled = f"the Node has no label {CONFIG_LABEL}"
    if default:
        _check("--default-config", default, names)
        return Choice(default, "default", f"{unlabelled}, and --default-config names it")
    for strategy in strategies:
        if strategy == "named" and FALLBACK_NAME in names:
            return Choice(FALLBACK_NAME, strategy, f"{unlabelled}, and this is its name")
        if strategy == "single" and len(names) == 1:
            (name,) = names
            return Choice(name, strategy, f"{unlabelled}, and there is no other entry")
        if strategy == "empty":
            break
    return Choice("", "empty", f"{unlabelled}, and no entry is for such Nodes ({shown(names)})")


def shown(names: Collection[str]) -> str:
    """Names of entries as a message tells them."""
    listed = sorted(names)
    if not listed:
        return "there are no entries"
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"entries: {', '.join(listed[:_SHOWN])}{more}"


def _check(who: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise SettingInvalid(f"{who} names {name!r}, which does not exist; {shown(names)}")
