"""The services of a mesh whose engines are nodes of network.py: an engine, a node id, a namespace each."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.network import CONTROL, STORE, Network, data_address, management_address
from bench.cluster.scale import SmallNode
from services.cli.mesh.plan import ServicePlan

PORT, METRICS_PORT = 7000, 7001
"""Every host has its own; services of the controller take the next ones."""

WAIT_S = 300
"""Longer than anything here waits: queues are what is measured."""


@dataclass(frozen=True)
class Scheduling:
    """What the global scheduler is told."""

    policy: str
    split_reads: bool
    alpha_tokens: int
    beta_tokens: int


@dataclass(frozen=True)
class Cluster:
    prefill: int
    decode: int

    @property
    def name(self) -> str:
        return f"{self.prefill}P{self.decode}D"

    @property
    def roles(self) -> list[str]:
        """Of node 1, node 2, ..."""
        return ["prefill"] * self.prefill + ["decode"] * self.decode

    def engine(self, node: int) -> str:
        """The name of a node's engine."""
        role = self.roles[node - 1]
        return f"{role}-{node - 1 if role == 'prefill' else node - 1 - self.prefill}"


def plans(
    net: Network, cluster: Cluster, node: SmallNode, scheduling: Scheduling, folder: Path, lanes: int, max_context: int
) -> list[ServicePlan]:
    """In the order of starting. `folder` has the engines' model file, model.json."""
    scheduler, kvstore = f"{management_address(CONTROL)}:{PORT}", f"{management_address(STORE)}:{PORT}"
    store = ("--path", str(folder / "store"), "--read-threads", "16", *_fabric(STORE))
    policy: tuple[str, ...] = ("--policy", scheduling.policy, "--split-reads", str(scheduling.split_reads).lower())
    policy += ("--alpha-tokens", str(scheduling.alpha_tokens), "--beta-tokens", str(scheduling.beta_tokens))
    services = [
        _plan(net, STORE, "kvstore", "kvstore", store),
        _plan(net, CONTROL, "global_scheduler", "global_scheduler", (*policy, "--wait-ms", str(1000 * WAIT_S))),
    ]
    for number, role in enumerate(cluster.roles, 1):
        flags: tuple[str, ...] = ("--engine", "synthetic", "--role", role)
        flags += ("--synthetic-model", str(folder / "model.json"))
        flags += ("--scheduler", scheduler, "--kvstore", kvstore, "--node-id", f"node{number}")
        flags += ("--engine-id", cluster.engine(number), *_fabric(number))
        flags += ("--lanes", str(lanes), "--slots", "1024", "--max-context", str(max_context))
        flags += ("--kv-pages", str(node.pages), "--step-tokens", str(node.step_tokens))
        flags += ("--load-deadline-s", str(WAIT_S), "--patience-s", str(WAIT_S))
        services.append(_plan(net, number, cluster.engine(number), "gpu_backend", flags))
    wait = ("--engine-wait-s", str(WAIT_S), "--schedule-s", str(WAIT_S + 1), "--kv-lookup-s", "1")
    ends = ("--scheduler", scheduler, "--kvstore", kvstore, *wait)
    services.append(_plan(net, CONTROL, "tokenizer", "tokenizer", ends, place=1))
    services.append(_gateway(net, services[-1].address, scheduler))
    return services


def gateway_url() -> str:
    return f"http://{management_address(CONTROL)}:{PORT + 10}"


def metrics_address(number: int) -> str:
    return f"{management_address(number)}:{METRICS_PORT}"


def _fabric(host: int) -> tuple[str, ...]:
    return ("--transport", "tcp", "--fabric-address", f"{data_address(host)}:0")


def _plan(net: Network, host: int, name: str, service: str, flags: Sequence[str], place: int = 0) -> ServicePlan:
    address, metrics = (f"{management_address(host)}:{port + 2 * place}" for port in (PORT, METRICS_PORT))
    own = ("--address", address, "--metrics-address", metrics, "--log-level", "warning")
    return ServicePlan(name, net.command(host, *_python(service), *own, *flags), address, metrics=metrics)


def _gateway(net: Network, tokenizer: str, scheduler: str) -> ServicePlan:
    host, port = management_address(CONTROL), PORT + 10
    flags = ("--host", host, "--port", str(port), "--tokenizer", tokenizer, "--scheduler", scheduler)
    command = net.command(CONTROL, *_python("gateway"), *flags, "--log-level", "warning")
    return ServicePlan("gateway", command, f"{host}:{port}", ready_page="/ready", metrics=f"{host}:{port}")


def _python(service: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{service}")


def node_numbers(cluster: Cluster) -> Iterator[int]:
    return iter(range(1, len(cluster.roles) + 1))
