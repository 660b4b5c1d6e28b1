"""GPU models as data: memory, engines, MIG profiles, abilities.

Sources: NVIDIA's MIG user guide ("Supported MIG Profiles"), `nvidia-smi mig -lgip` listings in
public threads (NVIDIA/mig-parted #120, #166, #187, #227; NVIDIA/gpu-operator #1303), data sheets,
and the numbers of `nvml.h`. `mig_profiles.py` holds what all MIG models have in common.
"""

import re
from dataclasses import dataclass

from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.mig_profiles import GiProfile, ProfileRow, seven_slice_profiles

MIB = 1 << 20

# Bits of sim_model_t.abilities in native/sim.h.
MIG = 1 << 0
MIG_SWITCH_AT_ONCE = 1 << 1
TIME_SLICE = 1 << 2
MEMORY_INFO = 1 << 3
ECC = 1 << 4
ROW_REMAP = 1 << 5
FABRIC = 1 << 6
MODULE_ID = 1 << 7

_DATA_CENTRE = TIME_SLICE | MEMORY_INFO | ECC
_AMPERE_MODULE = _DATA_CENTRE | MIG | ROW_REMAP | MODULE_ID
_HOPPER_MODULE = _AMPERE_MODULE | MIG_SWITCH_AT_ONCE | FABRIC

# nvml.h: nvmlBrandType_t, NVML_DEVICE_ARCH_…, nvmlDeviceAddressingModeType_t
BRAND_TESLA, BRAND_NVIDIA = 2, 14
PASCAL, TURING, AMPERE, ADA, HOPPER, BLACKWELL = 4, 6, 7, 8, 9, 10
ADDRESSING_NONE, ADDRESSING_HMM, ADDRESSING_ATS = 0, 1, 2
ADDRESSING_NOT_SUPPORTED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What all GPUs of one model have in common. Fields as in sim_model_t."""

    key: str
    name: str
    vbios: str
    memory_bytes: int
    reserved_bytes: int
    architecture: int
    compute_major: int
    compute_minor: int
    pci_device_id: int
    pci_subsystem_id: int
    abilities: int
    addressing_mode: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    brand: int = BRAND_NVIDIA
    compute_slices: int = 0
    gi: tuple[GiProfile, ...] = ()


def _row(mib: int, sms: int, copy: int, decoders: int, jpegs: int, ofas: int) -> ProfileRow:
    return ProfileRow(mib, sms, copy, decoders, jpegs, ofas)


# Rows in the order 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g:
# MiB, multiprocessors, copy engines, decoders, JPEG engines, OFAs.
_A100_40GB = seven_slice_profiles(
    ("1g.5gb", _row(4864, 14, 1, 0, 0, 0)),
    ("1g.5gb+me", _row(4864, 14, 1, 1, 1, 1)),
    ("1g.10gb", _row(9856, 14, 1, 1, 0, 0)),
    ("2g.10gb", _row(9856, 28, 2, 1, 0, 0)),
    ("3g.20gb", _row(19968, 42, 3, 2, 0, 0)),
    ("4g.20gb", _row(19968, 56, 4, 2, 0, 0)),
    ("7g.40gb", _row(40192, 98, 7, 5, 1, 1)),
)
_A100_80GB = seven_slice_profiles(
    ("1g.10gb", _row(9728, 14, 1, 0, 0, 0)),
    ("1g.10gb+me", _row(9728, 14, 1, 1, 1, 1)),
    ("1g.20gb", _row(19968, 14, 1, 1, 0, 0)),
    ("2g.20gb", _row(19968, 28, 2, 1, 0, 0)),
    ("3g.40gb", _row(40192, 42, 3, 2, 0, 0)),
    ("4g.40gb", _row(40192, 56, 4, 2, 0, 0)),
    ("7g.80gb", _row(80640, 98, 7, 5, 1, 1)),
)
_H100_80GB = seven_slice_profiles(
    ("1g.10gb", _row(9984, 16, 1, 1, 1, 0)),
    ("1g.10gb+me", _row(9984, 16, 1, 1, 1, 1)),
    ("1g.20gb", _row(20096, 26, 1, 1, 1, 0)),
    ("2g.20gb", _row(20096, 32, 2, 2, 2, 0)),
    ("3g.40gb", _row(40448, 60, 3, 3, 3, 0)),
    ("4g.40gb", _row(40448, 64, 4, 4, 4, 0)),
    ("7g.80gb", _row(81152, 132, 8, 7, 7, 1)),
)
_H200 = seven_slice_profiles(
    ("1g.18gb", _row(16384, 16, 1, 1, 1, 0)),
    ("1g.18gb+me", _row(16384, 16, 1, 1, 1, 1)),
    ("1g.35gb", _row(33024, 26, 1, 1, 1, 0)),
    ("2g.35gb", _row(33024, 32, 2, 2, 2, 0)),
    ("3g.71gb", _row(71168, 60, 3, 3, 3, 0)),
    ("4g.71gb", _row(71168, 64, 4, 4, 4, 0)),
    ("7g.141gb", _row(143104, 132, 8, 7, 7, 1)),
)
_B200 = seven_slice_profiles(
    ("1g.23gb", _row(22528, 18, 2, 1, 1, 0)),
    ("1g.23gb+me", _row(22528, 18, 2, 1, 1, 1)),
    ("1g.45gb", _row(45312, 30, 2, 1, 1, 0)),
    ("2g.45gb", _row(45312, 36, 4, 2, 2, 0)),
    ("3g.90gb", _row(90880, 70, 6, 3, 3, 0)),
    ("4g.90gb", _row(90880, 72, 8, 4, 4, 0)),
    ("7g.180gb", _row(182272, 148, 16, 7, 7, 1)),
)
_GB200 = seven_slice_profiles(
    ("1g.24gb", _row(20480, 18, 2, 1, 1, 0)),
    ("1g.24gb+me", _row(20480, 18, 2, 1, 1, 1)),
    ("1g.47gb", _row(46592, 32, 2, 1, 1, 0)),
    ("2g.47gb", _row(46592, 38, 4, 2, 2, 0)),
    ("3g.95gb", _row(94208, 72, 6, 3, 3, 0)),
    ("4g.95gb", _row(94208, 76, 8, 4, 4, 0)),
    ("7g.189gb", _row(188416, 152, 16, 7, 7, 1)),
)

_MODELS = (
    GpuModel(
        "a100-40gb", "NVIDIA A100-SXM4-40GB", "92.00.45.00.03",
        40960 * MIB, 580 * MIB, AMPERE, 8, 0,
        0x20B010DE, 0x134F10DE, _AMPERE_MODULE, ADDRESSING_HMM,
        multiprocessors=108, copy_engines=7, decoders=5, encoders=0, jpegs=1, ofas=1,
        compute_slices=7, gi=_A100_40GB,
    ),
    GpuModel(
        "a100-80gb", "NVIDIA A100-SXM4-80GB", "92.00.A0.00.05",
        81920 * MIB, 601 * MIB, AMPERE, 8, 0,
        0x20B210DE, 0x146310DE, _AMPERE_MODULE, ADDRESSING_HMM,
        multiprocessors=108, copy_engines=7, decoders=5, encoders=0, jpegs=1, ofas=1,
        compute_slices=7, gi=_A100_80GB,
    ),
    GpuModel(
        "h100-80gb", "NVIDIA H100 80GB HBM3", "96.00.99.00.01",
        81559 * MIB, 551 * MIB, HOPPER, 9, 0,
        0x233010DE, 0x16C110DE, _HOPPER_MODULE, ADDRESSING_HMM,
        multiprocessors=132, copy_engines=8, decoders=7, encoders=0, jpegs=7, ofas=1,
        compute_slices=7, gi=_H100_80GB,
    ),
    GpuModel(
        "h200", "NVIDIA H200", "96.00.BC.00.02",
        143771 * MIB, 599 * MIB, HOPPER, 9, 0,
        0x233510DE, 0x18BE10DE, _HOPPER_MODULE, ADDRESSING_HMM,
        multiprocessors=132, copy_engines=8, decoders=7, encoders=0, jpegs=7, ofas=1,
        compute_slices=7, gi=_H200,
    ),
    GpuModel(
        "b200", "NVIDIA B200", "97.00.88.00.0F",
        183359 * MIB, 710 * MIB, BLACKWELL, 10, 0,
        0x290110DE, 0x199910DE, _HOPPER_MODULE, ADDRESSING_HMM,
        multiprocessors=148, copy_engines=16, decoders=7, encoders=0, jpegs=7, ofas=1,
        compute_slices=7, gi=_B200,
    ),
    GpuModel(
        "gb200", "NVIDIA GB200", "97.00.9E.00.14",
        189471 * MIB, 792 * MIB, BLACKWELL, 10, 0,
        0x294110DE, 0x204610DE, _HOPPER_MODULE, ADDRESSING_ATS,
        multiprocessors=152, copy_engines=16, decoders=7, encoders=0, jpegs=7, ofas=1,
        compute_slices=7, gi=_GB200,
    ),
    GpuModel(
        "l40s", "NVIDIA L40S", "95.02.66.00.02",
        46068 * MIB, 612 * MIB, ADA, 8, 9,
        0x26B910DE, 0x185110DE, _DATA_CENTRE | ROW_REMAP, ADDRESSING_HMM,
        multiprocessors=142, copy_engines=4, decoders=3, encoders=3, jpegs=4, ofas=1,
    ),
    GpuModel(
        "t4", "Tesla T4", "90.04.38.00.03",
        15360 * MIB, 447 * MIB, TURING, 7, 5,
        0x1EB810DE, 0x12A210DE, _DATA_CENTRE, ADDRESSING_NONE,
        multiprocessors=40, copy_engines=3, decoders=2, encoders=1, jpegs=0, ofas=0,
    ),
    # Pascal: no time-slices (Volta and later), no addressing mode (Turing and later).
    GpuModel(
        "p4", "Tesla P4", "86.04.8C.00.10",
        7680 * MIB, 86 * MIB, PASCAL, 6, 1,
        0x1BB310DE, 0x11D810DE, MEMORY_INFO | ECC, ADDRESSING_NOT_SUPPORTED,
        multiprocessors=20, copy_engines=2, decoders=1, encoders=1, jpegs=0, ofas=0,
        brand=BRAND_TESLA,
    ),
    # One memory for CPU and GPU: NVML has no memory figures for it.
    GpuModel(
        "gb10", "NVIDIA GB10", "9A.0B.12.00.15",
        0, 0, BLACKWELL, 12, 1,
        0x2E1210DE, 0x000010DE, TIME_SLICE, ADDRESSING_ATS,
        multiprocessors=48, copy_engines=2, decoders=1, encoders=1, jpegs=1, ofas=1,
    ),
)  # fmt: skip

MODELS = {model.key: model for model in _MODELS}

# The CUDA version a driver branch brings, from NVIDIA's release notes: first branch, NVML's number.
_CUDA_VERSIONS = (
    (615, 13040), (605, 13030), (595, 13020), (590, 13010), (580, 13000), (575, 12090),
    (570, 12080), (565, 12070), (560, 12060), (555, 12050), (550, 12040), (545, 12030),
    (535, 12020), (530, 12010), (525, 12000), (0, 11080),
)  # fmt: skip


def model(key: str) -> GpuModel:
    """Give the model of this key.

    Raises:
        SettingInvalid: there is no such model; the message lists those there are.

    """
    if key not in MODELS:
        raise SettingInvalid(f"model {key!r} is not known; there are {', '.join(sorted(MODELS))}")
    return MODELS[key]


def cuda_version(driver_version: str) -> int:
    """Give the CUDA version that comes with a GPU driver, as NVML counts (13000 is 13.0).

    Raises:
        SettingInvalid: the driver version does not begin with a branch number.

    """
    branch = re.match(r"\d+(?=\.|$)", driver_version)
    if branch is None:
        raise SettingInvalid(f"driver version {driver_version!r} should look like 580.95.05")
    return next(cuda for first, cuda in _CUDA_VERSIONS if int(branch[0]) >= first)
