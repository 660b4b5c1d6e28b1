"""The MPS agent: a process that owns the control daemons of MPS, whoever comes and goes beside it.

Read `keeper` first: it has one daemon for one set of devices from the first claim to the last.
`sets` has all of them and refuses what does not go together; `daemon` starts, asks and ends a
daemon by `control`, the GPU driver's own program, which `programs` finds; `ground` is what a daemon
stands on: folders, `/dev/shm`, compute mode. `service` is what the plugin calls, `agent` puts all
together.
"""
