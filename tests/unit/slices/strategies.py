"""Hypothesis strategies: any hardware at all, however odd."""

from hypothesis import strategies as st

from dra_driver.model import (
    Gpu,
    GpuPolicy,
    Health,
    HealthState,
    Inventory,
    MemoryLimitLevel,
    MemoryType,
    MigProfile,
    Partition,
    Partitioning,
    Placement,
    SharesMode,
    SharesPolicy,
    Slot,
)
from tests.support.mig_models import slots_of

WORDS = st.sampled_from(
    ("NVIDIA H100", "1g.10gb", "1g.10gb+me", "1g." + "x" * 49, "580.95.05", "gpu-lost", "")
)
TEXT = WORDS | st.text(max_size=80)
COUNT = st.integers(-1, 200) | st.integers(-(2**70), 2**70)
SIZE = st.none() | st.integers(0, 1 << 40) | COUNT
HEALTH = st.builds(Health, st.sampled_from(HealthState), TEXT, TEXT, st.just(1.0))
PROFILES = st.builds(
    MigProfile, TEXT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT
)
PLACEMENTS = st.builds(Placement, st.integers(-1, 20), st.integers(0, 20))
SLOTS = st.builds(Slot, PROFILES, PLACEMENTS) | st.sampled_from(slots_of("h100-80gb"))
PARTITIONS = st.builds(
    Partition,
    TEXT,
    PROFILES,
    PLACEMENTS,
    st.integers(0, 20),
    st.integers(0, 5),
    st.none() | TEXT,
    HEALTH,
)
SHARES = st.builds(
    SharesPolicy,
    st.sampled_from(SharesMode),
    st.integers(1, 1000),
    st.booleans(),
    st.sampled_from((0, 1 << 20, 1 << 30, 3_000_000_001)) | st.integers(0, 1 << 41),
)
GPUS = st.builds(
    Gpu,
    uuid=TEXT,
    minor=st.integers(-1, 100),
    product_name=TEXT,
    brand=TEXT,
    architecture=TEXT,
    compute_capability=st.none() | st.tuples(COUNT, COUNT),
    memory_bytes=SIZE,
    memory_type=st.sampled_from(MemoryType),
    pci_bus_id=st.none() | TEXT,
    pcie_root=st.none() | TEXT,
    numa_node=st.none() | COUNT,
    addressing_mode=st.none() | TEXT,
    mig_enabled=st.booleans(),
    partitions=st.lists(PARTITIONS, max_size=3).map(tuple),
    health=HEALTH,
    mig_capable=st.booleans(),
    slots=st.sampled_from((slots_of("b200"), slots_of("a100-40gb")))
    | st.lists(SLOTS, max_size=4).map(tuple),
    policy=st.builds(
        GpuPolicy,
        st.sampled_from(Partitioning),
        allow_reset=st.booleans(),
        single_strategy=st.booleans(),
        named_by_uuid=st.booleans(),
        shares=SHARES,
        required_limit=st.sampled_from(MemoryLimitLevel),
    ),
    foreign=st.lists(PARTITIONS, max_size=1).map(tuple),
    held_back=st.sampled_from(("", "a layout waits")),
    memory_limit=st.sampled_from(MemoryLimitLevel),
)
INVENTORIES = st.builds(
    Inventory,
    gpus=st.lists(GPUS, max_size=6).map(tuple),
    driver_version=TEXT,
    cuda_driver_version=st.none() | st.tuples(COUNT, COUNT),
)
