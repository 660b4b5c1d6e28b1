"""MIG profiles of GPUs with seven compute slices and eight memory slices (A100 to GB200).

Profile ids and placements are the same on all of them (`nvidia-smi mig -lgip` and `-lgipp`); what
a profile holds differs by model.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """What one GPU-instance profile holds on one model."""

    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    jpegs: int
    ofas: int


@dataclass(frozen=True, slots=True)
class CiProfile:
    """A compute-instance profile. Fields as in sim_ci_profile_t."""

    index: int
    id: int
    slices: int
    multiprocessors: int
    starts: tuple[int, ...]
    creatable: int
    name: str


@dataclass(frozen=True, slots=True)
class GiProfile:
    """A GPU-instance profile. Fields as in sim_gi_profile_t."""

    index: int
    id: int
    slices: int
    max_instances: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    memory_mib: int
    capabilities: int
    size: int
    starts: tuple[int, ...]
    name: str
    ci: tuple[CiProfile, ...]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Where a profile fits; `index` is NVML_GPU_INSTANCE_PROFILE_…, sizes are in slices."""

    index: int
    id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    max_instances: int


_GEOMETRY = (
    _Geometry(0x0, 19, 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),  # 1g
    _Geometry(0x7, 20, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),  # 1g+me
    _Geometry(0x9, 15, 1, 2, (0, 2, 4, 6), 4),  # 1g with double memory
    _Geometry(0x1, 14, 2, 2, (0, 2, 4), 3),  # 2g
    _Geometry(0x2, 9, 3, 4, (0, 4), 2),  # 3g
    _Geometry(0x3, 5, 4, 4, (0,), 1),  # 4g
    _Geometry(0x4, 0, 7, 8, (0,), 1),  # 7g
)

# Compute-instance profiles by slices of the GPU instance: NVML_COMPUTE_INSTANCE_PROFILE_… (also the
# profile id), slices, starts.
_COMPUTE = {
    1: ((0, 1, (0,)),),
    2: ((0, 1, (0, 1)), (1, 2, (0,))),
    3: ((0, 1, (0, 1, 2)), (1, 2, (0,)), (2, 3, (0,))),
    4: ((0, 1, (0, 1, 2, 3)), (1, 2, (0, 2)), (3, 4, (0,))),
    7: (
        (0, 1, (0, 1, 2, 3, 4, 5, 6)),
        (1, 2, (0, 2, 4)),
        (2, 3, (0, 4)),
        (3, 4, (0,)),
        (4, 7, (0,)),
        (8, 7, (0,)),
    ),
}

# NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL is listed beside 7_SLICE under the same name, and no GPU
# is known on which it can be created (kubernetes-sigs/dra-driver-nvidia-gpu #1480).
_NOT_CREATABLE = {8}


def _compute_profiles(
    name: str, row: ProfileRow, slices: int, slice_multiprocessors: int
) -> tuple[CiProfile, ...]:
    return tuple(
        CiProfile(
            index=index,
            id=index,
            slices=size,
            multiprocessors=(
                row.multiprocessors if size == slices else size * slice_multiprocessors
            ),
            starts=starts,
            creatable=int(index not in _NOT_CREATABLE),
            name=f"MIG {name}" if size == slices else f"MIG {size}c.{name}",
        )
        for index, size, starts in _COMPUTE[slices]
    )


def seven_slice_profiles(*rows: tuple[str, ProfileRow]) -> tuple[GiProfile, ...]:
    """Give the profiles of a model from its rows, in the order 1g, 1g+me, 1g double, 2g … 7g."""
    slice_multiprocessors = rows[0][1].multiprocessors
    return tuple(
        GiProfile(
            index=place.index,
            id=place.id,
            slices=place.slices,
            max_instances=place.max_instances,
            multiprocessors=row.multiprocessors,
            copy_engines=row.copy_engines,
            decoders=row.decoders,
            encoders=0,
            jpegs=row.jpegs,
            ofas=row.ofas,
            memory_mib=row.memory_mib,
            capabilities=0,
            size=place.size,
            starts=place.starts,
            name=f"MIG {name}",
            ci=_compute_profiles(name, row, place.slices, slice_multiprocessors),
        )
        for place, (name, row) in zip(_GEOMETRY, rows, strict=True)
    )
