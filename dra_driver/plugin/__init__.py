"""The node plugin: gRPC services for the kubelet, registration, probes, and their wiring."""

import os

# Read by grpcio when it is imported: children are started by `host`, never by a plain fork.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
