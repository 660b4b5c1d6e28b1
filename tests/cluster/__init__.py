"""A real one-node Kubernetes cluster in namespaces of its own, for tests.

`python -m tests.cluster run` builds what is missing into a cache outside the checkout, enters a
sandbox that vanishes with its last process, and runs pytest on this folder inside of it.
"""
