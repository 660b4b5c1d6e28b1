"""The node plugin: gRPC services for the kubelet, registration, probes, and their wiring."""
