"""Sets of MPS that no claim has: all of them is put back, however often that takes."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from dra_driver.config import Settings
from dra_driver.model.errors import HardwareBusy
from dra_driver.sharing.mps import MpsSets
from dra_driver.sharing.mps_notes import MpsFolders, SetNote, SetNotes
from dra_driver.sharing.mps_spec import MpsDevice, MpsSpec, set_id

SPEC = MpsSpec(set_id(["GPU-0"]), (MpsDevice("GPU-0", "GPU-0"),))


def test_a_compute_mode_that_can_not_be_put_back_is_tried_again(tmp_path: Path) -> None:
    settings = Settings(node_name="node-a", plugins_folder=tmp_path)
    sets = MpsSets(mock.Mock(), settings, list, frozenset)
    notes = SetNotes(MpsFolders(settings))
    notes.prepare()
    notes.write(SetNote(spec=SPEC))
    put_back: list[str] = []

    def sweep(error: Exception | None) -> None:
        """The agent forgets what is released, and a GPU may be busy."""
        with (
            mock.patch.object(sets._agent, "release", notes.remove),
            mock.patch.object(sets._modes, "_jobs") as jobs,
        ):
            jobs.run.side_effect = error or (lambda gpu, _: put_back.append(gpu))
            sets.assert_again([], lambda _: nullcontext(enter_result=True))

    with pytest.raises(HardwareBusy):
        sweep(HardwareBusy("another call has the GPU"))
    sweep(None)
    assert put_back == ["GPU-0"]
    sweep(None)
    assert put_back == ["GPU-0"]
    assert notes.ids() == []
