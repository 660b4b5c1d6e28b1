"""Code generated from `proto/` at build time, and nothing else (`make rpc`)."""
