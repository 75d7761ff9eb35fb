"""What every service shares: settings, paths, logs, traces, gRPC, lifecycle. Knows no service."""
