"""The node plugin: gRPC services for the kubelet, registration, probes, and their wiring."""

import os

# Read by grpcio when it is imported. Children are started by `host`, never by a plain fork. Its own
# lines would not be JSON, and what they tell is in the errors that we report.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
