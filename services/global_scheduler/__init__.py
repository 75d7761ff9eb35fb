"""Which engine serves a request, over which path: a pure policy and a gRPC shell around it."""
