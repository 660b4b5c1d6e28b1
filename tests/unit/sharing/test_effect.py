"""What is set again is what live claims want, whatever becomes of them meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from dra_driver.config import Settings
from dra_driver.sharing import SharingEffect
from dra_driver.state import ClaimRecord


@pytest.mark.parametrize("is_live", [True, False])
def test_memory_is_limited_again_only_for_claims_that_live(tmp_path: Path, is_live: bool) -> None:  # noqa: FBT001
    settings = Settings(node_name="node-a", plugins_folder=tmp_path)
    effect = SharingEffect(mock.Mock(), settings, list)
    record = ClaimRecord(namespace="default", name="claim", uid="uid", devices=())

    @contextmanager
    def undisturbed(_: ClaimRecord) -> Iterator[bool]:
        yield is_live

    with mock.patch.object(effect._limits, "apply") as limit:
        effect.assert_again([record], undisturbed)
    assert limit.called is is_live
