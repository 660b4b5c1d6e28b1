"""GPUs as the driver sees them, from the tables of the simulated models."""

from functools import cache

from dra_driver.model import Gpu, MigProfile, Placement, Slot
from dra_driver.simulator.mig_profiles import GiProfile
from dra_driver.simulator.models import ADA, AMPERE, BLACKWELL, HOPPER, MODELS, PASCAL, TURING

_ARCHITECTURES = {
    PASCAL: "Pascal",
    TURING: "Turing",
    AMPERE: "Ampere",
    ADA: "Ada",
    HOPPER: "Hopper",
    BLACKWELL: "Blackwell",
}
MIG_MODELS = tuple(key for key, model in MODELS.items() if model.gi)


@cache
def slots_of(model: str) -> tuple[Slot, ...]:
    """Every place at which a GPU of that model can have a partition."""
    return tuple(
        Slot(profile_of(profile), Placement(start, profile.size))
        for profile in MODELS[model].gi
        for start in profile.starts
    )


def profile_of(profile: GiProfile) -> MigProfile:
    """Profile in the driver's words; its compute instance is the last that spans all slices."""
    whole = [ci for ci in profile.ci if ci.slices == profile.slices and ci.creatable]
    return MigProfile(
        profile.name.removeprefix("MIG "),
        profile.id,
        whole[-1].id,
        profile.memory_mib << 20,
        profile.multiprocessors,
        profile.copy_engines,
        profile.decoders,
        profile.encoders,
        profile.jpegs,
        profile.ofas,
    )


def gpu_of(model: str, minor: int = 0) -> Gpu:
    """Make a GPU of that model; its PCI order is that of the minor numbers."""
    table = MODELS[model]
    return Gpu(
        uuid=f"GPU-00000000-0000-0000-0000-{minor:012x}",
        minor=minor,
        product_name=table.name,
        architecture=_ARCHITECTURES[table.architecture],
        memory_bytes=table.memory_bytes,
        pci_bus_id=f"0000:{minor + 0x1B:02x}:00.0",
        pci_device_id=table.pci_device_id,
        mig_capable=bool(table.gi),
        slots=slots_of(model),
    )
