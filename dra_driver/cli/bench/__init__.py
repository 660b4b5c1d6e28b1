"""`dra-driver bench`: what a DRA driver costs, measured from outside as the kubelet meets it.

Read `run` first: it is the order of things. `target` is the driver that is measured, `embedded`
makes one with everything around it; `sharing` says how claims share devices, `offer` chooses among
the devices, `claims` creates claims with written allocations; `rounds` takes times, `costs` counts
what calls cause, `floor` and `mps_daemon` say what the machine itself needs; `figures` is the
result, `text` shows it.
"""
