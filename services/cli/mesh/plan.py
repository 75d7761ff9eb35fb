"""Which processes make a mesh on this machine. Pure: options and ports in, plans out."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

HOST = "127.0.0.1"
"""Where the services behind the gateway listen: they are for this machine only."""

READY_S, ENGINE_READY_S = 60.0, 300.0
"""Time until a service is ready. An engine may have weights to load and kernels to try; the gateway waits for one."""

STOP_S = 8.0
"""Time a service has to stop after SIGTERM, before it is killed."""


@dataclass(frozen=True)
class MeshOptions:
    """What `hostless up` was asked for."""

    host: str = HOST
    port: int = 8000
    engine: str = "torch"
    scheduler: str = ""  # where steps are decided; empty: the engine's own choice
    model: str = ""
    engines: int = 1  # that serve whole requests; none where there are the others
    prefill: int = 0
    decode: int = 0
    policy: str = ""  # how engines are chosen; empty: the default, dualpath where roles differ
    kvstore: bool = True
    threads: int = 0  # CPU threads an engine; 0: its own choice
    rate: float = 0.0  # tokens/s a request, synthetic engine only; 0: its own default
    grace_s: float = 10.0
    log_level: str = "info"

    @property
    def roles(self) -> list[tuple[str, str]]:
        """Name, in the mesh too, and role of each engine as it starts."""
        if self.prefill or self.decode:
            return [(f"{role}-{i}", role) for role in ("prefill", "decode") for i in range(getattr(self, role))]
        if self.engines == 1:
            return [("gpu_backend", "unified")]
        return [(f"gpu_backend-{i}", "unified") for i in range(self.engines)]


@dataclass(frozen=True)
class ServicePlan:
    """One process: how to start it, and how to tell that it is ready."""

    name: str
    command: tuple[str, ...]
    address: str  # host:port
    ready_page: str = ""  # path that answers 200 when ready; empty: it has a gRPC health service
    metrics: str = ""  # host:port of /metrics; empty: none
    ready_s: float = READY_S
    stop_s: float = STOP_S

    @property
    def section(self) -> str:
        """Whose settings it has."""
        return self.command[2].removeprefix("services.")

    @property
    def flags(self) -> tuple[str, ...]:
        return self.command[3:]

    @property
    def probe(self) -> str:
        """What services/common/probe.py asks."""
        return f"http://{self.address}{self.ready_page}" if self.ready_page else self.address


def ports_needed(options: MeshOptions) -> int:
    """How many ports `mesh_plan` takes, the gateway's own not counted: two a service."""
    return 2 * (options.kvstore + 1 + len(options.roles) + 1)


def mesh_plan(options: MeshOptions, ports: list[int]) -> list[ServicePlan]:
    """The services in the order of starting; stopping goes the other way round.

    `ports`: as many as `ports_needed` says, for the services behind the gateway.
    """
    addresses = (f"{HOST}:{port}" for port in ports)
    plans = []
    kvstore = scheduler = ""
    if options.kvstore:
        plans.append(_plan("kvstore", "kvstore", addresses, options))
        kvstore = plans[-1].address
    policy = options.policy or ("dualpath" if options.prefill else "")
    flags = ["--policy", policy] if policy else []
    plans.append(_plan("global_scheduler", "global_scheduler", addresses, options, *flags))
    scheduler = plans[-1].address
    for index, (name, role) in enumerate(options.roles):
        flags = ["--engine-id", name, "--role", role, "--engine", options.engine]
        flags += ["--scheduler", scheduler, "--kvstore", kvstore]
        if options.model:
            flags += ["--model", options.model]
        if options.scheduler:
            flags += ["--scheduler-kind", options.scheduler]
        if options.engine == "cuda" and len(options.roles) > 1:
            flags += ["--gpu", str(index)]
        if options.threads:
            flags += ["--threads", str(options.threads)]
        if options.rate:
            flags += ["--synthetic-tokens-per-s", f"{options.rate:g}"]
        plans.append(_plan(name, "gpu_backend", addresses, options, *flags, ready_s=ENGINE_READY_S))
    flags = ["--scheduler", scheduler, "--kvstore", kvstore, "--grace-s", f"{options.grace_s:g}"]
    stop_s = options.grace_s + STOP_S
    plans.append(_plan("tokenizer", "tokenizer", addresses, options, *flags, stop_s=stop_s))
    plans.append(_gateway(options, plans[-1].address, scheduler))
    return plans


def _plan(
    name: str,
    service: str,
    addresses: Iterator[str],
    options: MeshOptions,
    *flags: str,
    ready_s: float = READY_S,
    stop_s: float = STOP_S,
) -> ServicePlan:
    address, metrics = next(addresses), next(addresses)
    own = ("--address", address, "--metrics-address", metrics, "--log-level", options.log_level)
    command = (*_python(service), *own, *flags)
    return ServicePlan(name, command, address, metrics=metrics, ready_s=ready_s, stop_s=stop_s)


def _gateway(options: MeshOptions, tokenizer: str, scheduler: str) -> ServicePlan:
    flags = ["--host", options.host, "--port", str(options.port), "--tokenizer", tokenizer, "--scheduler", scheduler]
    flags += ["--grace-s", f"{options.grace_s:g}", "--log-level", options.log_level]
    address = f"{reachable(options.host)}:{options.port}"
    return ServicePlan(
        "gateway",
        (*_python("gateway"), *flags),
        address,
        ready_page="/ready",
        metrics=address,
        ready_s=ENGINE_READY_S,
        stop_s=options.grace_s + STOP_S,
    )


def reachable(host: str) -> str:
    """What a client on this machine writes before `:port` for a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):
        return HOST
    return f"[{host}]" if ":" in host else host


def _python(service: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{service}")
