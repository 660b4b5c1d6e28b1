"""Spellings: PCI addresses and MIG profile names."""

from types import SimpleNamespace

import pynvml
import pytest

from dra_driver.nvml.gpu import normal_pci_bus_id
from dra_driver.nvml.partitions import profile_name

MIB = 1 << 20
A100_40GB = 40536 * MIB
H100_80GB = 81559 * MIB
H200 = 143771 * MIB


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1B:00.0", "0000:1b:00.0"),
        ("00010000:3D:1F.7", "10000:3d:1f.7"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("0000:1b:00", "0000:1b:00.0"),
        ("", None),
        ("../../etc/passwd", None),
        ("0000:1b:00.0/..", None),
    ],
)
def test_pci_address_is_spelled_as_sysfs_does(text: str, expected: str | None) -> None:
    assert normal_pci_bus_id(text) == expected


def info(slices: int, mib: int, name: str | None = None) -> SimpleNamespace:
    made = SimpleNamespace(sliceCount=slices, memorySizeMB=mib)
    if name is not None:
        made.name = name
    return made


@pytest.mark.parametrize("text", ["1g.10gb", "1g.10gb+me", "1g.24gb-me", "1g.5gb+me.all", "x.rev1"])
def test_b39_the_drivers_own_text_is_the_name(text: str) -> None:
    shown = profile_name(0, info(1, 9_000, f"MIG {text}"), H100_80GB)
    assert shown == text


@pytest.mark.parametrize(
    ("index", "slices", "mib", "total", "expected"),
    [
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, 1, 4864, A100_40GB, "1g.5gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE, 2, 9856, A100_40GB, "2g.10gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE, 3, 19968, A100_40GB, "3g.20gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, 7, 40192, A100_40GB, "7g.40gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, 1, 9984, H100_80GB, "1g.10gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 1, 9984, H100_80GB, "1g.10gb+me"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 1, 20096, H100_80GB, "1g.20gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, 7, 81_408, H100_80GB, "7g.80gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX, 1, 9984, H100_80GB, "1g.10gb+gfx"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 1, 9984, H100_80GB, "1g.10gb-me"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, 1, 9984, H100_80GB, "1g.10gb+me.all"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, 1, 16384, H200, "1g.18gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE, 2, 33280, H200, "2g.35gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE, 3, 71424, H200, "3g.71gb"),
        (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, 7, 144384 - 1024, H200, "7g.141gb"),
    ],
)
def test_b39_without_text_the_name_is_computed_as_nvidia_does(
    index: int, slices: int, mib: int, total: int, expected: str
) -> None:
    assert profile_name(index, info(slices, mib), total) == expected


def test_b39_memory_just_below_a_round_gib_is_rounded_up() -> None:
    name = profile_name(pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, info(7, 81_100), H100_80GB)
    assert name == "7g.80gb"


def test_name_without_known_gpu_memory_rounds_up() -> None:
    assert profile_name(0, info(1, 9984), None) == "1g.10gb"
