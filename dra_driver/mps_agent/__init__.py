"""The MPS agent: a process that owns the control daemons of MPS, whoever comes and goes beside it.

Read `keeper` first: it has one daemon for one set of devices from the first claim to the last.
`sets` has all of them and refuses what does not go together; `daemon` starts, asks and ends a
daemon by `control`, the GPU driver's own program, which `programs` finds; `set_folders` has what a
daemon shares with its clients. `service` is what the plugin calls, `agent` puts all together.

It does not use NVML: whoever does holds the GPUs, and keeps MIG mode from being switched. Compute
modes are the plugin's (`sharing.mps_modes`).
"""
