"""What `dra-driver config show` says of sharing."""

from typing import Any

from dra_driver.config import NODE_SOURCE, check_on_hardware
from dra_driver.config.amounts import text_of
from dra_driver.config.shares import SharesRule, SharingRule
from dra_driver.config.stored import mps_form
from dra_driver.model import (
    Gpu,
    PublishedDevice,
    SharesMode,
    SharesPolicy,
    SharingSettings,
    gpu_device_name,
)
from dra_driver.model.errors import ConfigInvalid


def shares_form(policy: SharesPolicy) -> dict[str, Any] | None:
    """Give shares in the words of the file; None: one claim has the device alone."""
    by: dict[SharesMode, dict[str, Any]] = {
        SharesMode.COUNT: {"count": policy.count},
        SharesMode.MEMORY: {"by": "memory", "reserve": text_of(policy.reserve_bytes)},
        SharesMode.UNLIMITED: {"unlimited": True},
    }
    if policy.mode is SharesMode.NONE:
        return None
    return {
        **by[policy.mode],
        "rename": policy.rename,
        "failRequestsGreaterThanOne": policy.fail_requests_greater_than_one,
    }


def sharing_form(settings: SharingSettings | None) -> dict[str, Any] | None:
    """Give the default of claims in the words of the file; None: nothing is set."""
    if settings is None:
        return None
    if settings.mps is not None:
        return {"strategy": settings.strategy.value, "mps": mps_form(settings.mps)}
    interval = settings.interval.word if settings.interval else None
    return {"strategy": settings.strategy.value, "interval": interval}


def shares_text(policy: SharesPolicy) -> str:
    """`4`, `memory`, `unlimited renamed`."""
    words = {SharesMode.NONE: "-", SharesMode.COUNT: str(policy.count)}
    text = words.get(policy.mode, policy.mode.value)
    return f"{text} renamed" if policy.rename and policy.mode is not SharesMode.NONE else text


def sharing_text(settings: SharingSettings | None) -> str:
    """`MPS`, `TimeSlicing Long`."""
    if settings is None:
        return "-"
    interval = f" {settings.interval.word}" if settings.interval else ""
    return settings.strategy.value + interval


def shares_rule_text(rule: SharesRule) -> str:
    """`count=4 rename=true`; what is not given is not shown."""
    given = rule.model_dump(by_alias=True, exclude_none=True, mode="json")
    words = (str(value).lower() if isinstance(value, bool) else value for value in given.values())
    return " ".join(f"{name}={word}" for name, word in zip(given, words, strict=True)) or "-"


def sharing_rule_text(rule: SharingRule | None) -> str:
    """`MPS`, `TimeSlicing Long`, `None`."""
    if rule is None:
        return "-"
    settings = rule.settings()
    return sharing_text(settings) if settings else rule.strategy


def sharing_problem(gpu: Gpu) -> str:
    """Say why a GPU can't be shared as its policy has it; empty: it can."""
    shares, settings = gpu.policy.shares, gpu.policy.sharing
    if gpu.memory_bytes is not None and shares.reserve_bytes >= gpu.memory_bytes:
        return (
            f"shares.reserve: {text_of(shares.reserve_bytes)} leaves nothing of a "
            f"{gpu.product_name}, which has {gpu.memory_bytes >> 20}Mi"
        )
    if shares.mode is SharesMode.MEMORY and gpu.memory_bytes is None:
        return f"shares.by: a {gpu.product_name} does not tell how much memory it has"
    if settings is not None:
        try:
            check_on_hardware(settings, [PublishedDevice(gpu_device_name(gpu), gpu)], NODE_SOURCE)
        except ConfigInvalid as error:
            return str(error)
    return ""
