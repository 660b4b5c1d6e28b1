"""What an administrator sets for a node, and what users write into claims for this driver."""

from dra_driver.config.entries import (
    CONFIG_LABEL,
    FALLBACK_STRATEGIES,
    Choice,
    choose,
    shown,
)
from dra_driver.config.fitting import fit
from dra_driver.config.layouts import (
    LayoutEntry,
    Wanted,
    load_layouts,
    resolve_layout,
    shipped_layouts,
)
from dra_driver.config.node import (
    DEFAULT_CONFIG,
    NodeConfig,
    config_schema,
    configured,
    gpu_indexes,
    load,
)
from dra_driver.config.on_hardware import NODE_SOURCE, check_on_hardware, limits_by_uuid
from dra_driver.config.opaque import (
    GpuConfig,
    MigDeviceConfig,
    decode_config,
    examine_config,
    opaque_schema,
)
from dra_driver.config.precedence import (
    ClaimSharing,
    DeviceSharing,
    resolve_config,
    resolve_configs,
)
from dra_driver.config.settings import DEFAULT_DRIVER_NAME, Settings
from dra_driver.config.stored import differences, read_stored, stored_form

__all__ = [
    "CONFIG_LABEL",
    "DEFAULT_CONFIG",
    "DEFAULT_DRIVER_NAME",
    "FALLBACK_STRATEGIES",
    "NODE_SOURCE",
    "Choice",
    "ClaimSharing",
    "DeviceSharing",
    "GpuConfig",
    "LayoutEntry",
    "MigDeviceConfig",
    "NodeConfig",
    "Settings",
    "Wanted",
    "check_on_hardware",
    "choose",
    "config_schema",
    "configured",
    "decode_config",
    "differences",
    "examine_config",
    "fit",
    "gpu_indexes",
    "limits_by_uuid",
    "load",
    "load_layouts",
    "opaque_schema",
    "read_stored",
    "resolve_config",
    "resolve_configs",
    "resolve_layout",
    "shipped_layouts",
    "shown",
    "stored_form",
]
