"""How programs share a device: time-slices of GPUs, set for claims and put back after the last."""

from dra_driver.sharing.effect import SharingEffect

__all__ = ["SharingEffect"]
