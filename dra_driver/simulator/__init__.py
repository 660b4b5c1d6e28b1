"""Simulated hardware: an NVML library with a state of its own, and what surrounds it on a node."""
