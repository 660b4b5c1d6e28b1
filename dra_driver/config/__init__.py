"""What an administrator sets for a node, and what users write into claims for this driver."""

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
from dra_driver.config.opaque import GpuConfig, MigDeviceConfig, decode_config, resolve_config
from dra_driver.config.settings import DEFAULT_DRIVER_NAME, Settings

__all__ = [
    "DEFAULT_CONFIG",
    "DEFAULT_DRIVER_NAME",
    "GpuConfig",
    "LayoutEntry",
    "MigDeviceConfig",
    "NodeConfig",
    "Settings",
    "Wanted",
    "config_schema",
    "configured",
    "decode_config",
    "fit",
    "gpu_indexes",
    "load",
    "load_layouts",
    "resolve_config",
    "resolve_layout",
    "shipped_layouts",
]
