"""Rules of the node configuration on how GPUs and partitions are shared."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dra_driver.config.amounts import Reserve
from dra_driver.config.sharing import IntervalWord, MpsDefaults, sharing_settings
from dra_driver.config.strict import StrictModel
from dra_driver.config.told import Told
from dra_driver.config.yaml_text import Path
from dra_driver.model import SharesMode, SharesPolicy, SharingSettings

_MOST_SHARES = 1000


def _true(value: bool) -> bool:  # noqa: FBT001 - the value itself
    if not value:
        raise ValueError("false is not allowed; allowed: true; `count: 1` ends sharing")
    return value


_Count = Annotated[int, Field(ge=1, le=_MOST_SHARES)]
_True = Annotated[
    bool, AfterValidator(_true), Field(json_schema_extra={"const": True}), Told(values="`true`")
]


class SharesRule(StrictModel):
    """By what devices are handed out to several claims; one of `count`, `by` and `unlimited`."""

    count: _Count | None = Field(
        default=None,
        description="So many shares, all alike; `1` ends what an earlier rule began.",
    )
    by: Literal["memory"] | None = Field(
        default=None, description="By amounts of memory, which each claim asks for."
    )
    unlimited: _True | None = Field(default=None, description="To as many claims as ask.")
    reserve: Annotated[Reserve | None, Told(default="0")] = Field(
        default=None,
        description="So much of each device's memory is not handed out; with `by: memory`, in the "
        "same rule.",
    )
    rename: Annotated[bool | None, Told(default="false")] = Field(
        default=None,
        description="The resource name ends in `.shared` (`nvidia.com/gpu.shared`), so that who "
        "asks for `nvidia.com/gpu` has a GPU alone.",
    )
    fail_requests_greater_than_one: Annotated[bool | None, Told(default="false")] = Field(
        default=None,
        description="More than one share for a container is refused: it brings no more of the GPU.",
    )

    def applied(self, policy: SharesPolicy) -> SharesPolicy:
        """Policy in which these fields replace those of earlier rules."""
        if self.count is not None:
            mode = SharesMode.COUNT if self.count > 1 else SharesMode.NONE
            count = self.count if self.count > 1 else 0
            policy = replace(policy, mode=mode, count=count, reserve_bytes=0)
        if self.by is not None:
            reserve = self.reserve or 0
            policy = replace(policy, mode=SharesMode.MEMORY, count=0, reserve_bytes=reserve)
        if self.unlimited:
            policy = replace(policy, mode=SharesMode.UNLIMITED, count=0, reserve_bytes=0)
        if self.rename is not None:
            policy = replace(policy, rename=self.rename)
        if self.fail_requests_greater_than_one is not None:
            policy = replace(
                policy, fail_requests_greater_than_one=self.fail_requests_greater_than_one
            )
        return policy

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield what does not go together, and where."""
        given = [name for name in ("count", "by", "unlimited") if getattr(self, name) is not None]
        for name in given[1:]:
            yield (name,), f"only allowed without {given[0]}; allowed: one of count, by, unlimited"
        if self.reserve is not None and self.by is None:
            yield ("reserve",), "only allowed together with by: memory in the same rule"


class SharingRule(StrictModel):
    """What claims get that say nothing of sharing."""

    strategy: Literal["None", "TimeSlicing", "MPS"] = Field(
        description="`None`: nothing is set; it ends what an earlier rule began. `TimeSlicing`: "
        "one program after the other. `MPS`: several at the same time, by a control daemon; Volta "
        "and later.",
    )
    interval: Annotated[IntervalWord | None, Told(default="Default")] = Field(
        default=None,
        description="How long a program runs before the next; with `TimeSlicing`. Partitions have "
        "none.",
    )
    mps: MpsDefaults | None = None

    def settings(self) -> SharingSettings | None:
        """Give what is wanted of a GPU; None: nothing is set."""
        if self.strategy == "None":
            return None
        return sharing_settings(self.strategy, self.interval, self.mps)

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield settings that are not those of the strategy."""
        if self.interval is not None and self.strategy != "TimeSlicing":
            yield ("interval",), "only allowed together with strategy: TimeSlicing"
        if self.mps is not None and self.strategy != "MPS":
            yield ("mps",), "only allowed together with strategy: MPS"
