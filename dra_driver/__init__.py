"""A Kubernetes DRA (Dynamic Resource Allocation) driver for NVIDIA GPUs."""
