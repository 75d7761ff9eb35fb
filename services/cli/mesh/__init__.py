"""The services on one machine: which processes, in what order, kept alive and stopped together."""
