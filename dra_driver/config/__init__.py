"""What an administrator sets for a node, and what users write into claims for this driver."""

from dra_driver.config.opaque import GpuConfig, MigDeviceConfig, decode_config, resolve_config
from dra_driver.config.settings import DEFAULT_DRIVER_NAME, Settings

__all__ = [
    "DEFAULT_DRIVER_NAME",
    "GpuConfig",
    "MigDeviceConfig",
    "Settings",
    "decode_config",
    "resolve_config",
]
