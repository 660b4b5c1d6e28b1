"""Hypothesis strategies: any hardware at all, however odd."""

from hypothesis import strategies as st

from dra_driver.model import (
    Gpu,
    Health,
    HealthState,
    Inventory,
    MemoryType,
    MigProfile,
    Partition,
    Placement,
)

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
PARTITIONS = st.builds(
    Partition,
    TEXT,
    PROFILES,
    st.builds(Placement, st.integers(-1, 20), st.integers(0, 20)),
    st.integers(0, 20),
    st.integers(0, 5),
    st.none() | TEXT,
    HEALTH,
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
)
INVENTORIES = st.builds(
    Inventory,
    gpus=st.lists(GPUS, max_size=6).map(tuple),
    driver_version=TEXT,
    cuda_driver_version=st.none() | st.tuples(COUNT, COUNT),
)
