"""What options choose among, as the services call it."""

from enum import StrEnum


class EngineKind(StrEnum):
    torch = "torch"
    cuda = "cuda"
    synthetic = "synthetic"


class SchedulerKind(StrEnum):
    device = "device"
    host = "host"
    host_overlap = "host-overlap"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
