"""One run of bench/dualpath.py, inside the namespaces: a mesh, agents, and what they used.

Started by bench/dualpath.py in the controller's namespace. Reads a Spec, writes a Result and the agents' log.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cluster.agents import Turn, go_through, log_lines, prompts, seed_store
from bench.cluster.mesh import Cluster, Scheduling, gateway_url, metrics_address, node_numbers, plans
from bench.cluster.network import STORE, Network, management_address
from bench.cluster.scale import Scale, agents, model_file, small_node
from bench.cluster.watch import Watch
from bench.common.readings import metrics_page
from services.cli.mesh.supervisor import Supervisor
from services.global_scheduler.simulator.hardware import load_hardware
from services.global_scheduler.simulator.shapes import load_model
from services.gpu_backend.settings import BackendSettings
from tests.mesh.baseline import link_bytes

MODEL = BackendSettings.model
"""Whose tokenizer is used; nothing of it is computed."""
SETTLE_S = 1.0


@dataclass(frozen=True)
class Spec:
    """What is run. `prefix` names the namespaces; `folder` is the run's own."""

    prefix: str
    folder: str
    cluster: Cluster
    scheduling: Scheduling
    model: str
    hardware: str
    trace: str
    scale: Scale
    agents: int
    turns: int
    lanes: int
    seed: int

    @classmethod
    def read(cls, path: Path) -> "Spec":
        parts = json.loads(path.read_text())
        kinds = {"cluster": Cluster, "scheduling": Scheduling, "scale": Scale}
        return cls(**{name: kinds[name](**value) if name in kinds else value for name, value in parts.items()})


@dataclass
class Result:
    """links: of each storage link's device at the store, and each node's compute device, (received, sent) bytes.
    kv: bytes by engine and link, as the engine counts them."""

    jct_s: float
    turns: int
    hit_tokens: int
    wanted_hit_tokens: int
    links: dict[str, tuple[int, int]]
    kv: dict[str, dict[str, int]]
    storage_each_second: dict[str, list[float]]
    cores: dict[str, float]
    busy: float
    stolen: float
    saturated: str


class Quiet:
    """A Reporter that only tells what goes wrong."""

    def starting(self, name: str, pid: int) -> None: ...

    def waiting(self, name: str, why: str) -> None: ...

    def ready(self, name: str, seconds: float) -> None: ...

    def died(self, name: str, how: str, restart_in_s: float) -> None:
        print(f"{name} {how}", file=sys.stderr)

    def stopping(self, name: str) -> None: ...

    def stopped(self, name: str, by_itself: bool) -> None:
        if not by_itself:
            print(f"{name} did not stop in time and was killed", file=sys.stderr)


async def run(spec: Spec) -> tuple[Result, list[Turn]]:
    folder = Path(spec.folder)
    node = small_node(load_model(spec.model), load_hardware(spec.hardware), spec.scale)
    (folder / "model.json").write_text(json.dumps(model_file(node.model)))
    work = agents(spec.trace, spec.scale, spec.agents, spec.turns, spec.seed)
    texts = prompts(work, spec.seed)
    longest = max(len(own[-1]) for own in texts) + int(work.output.max())
    net = Network(spec.prefix, len(spec.cluster.roles))
    services = plans(net, spec.cluster, node, spec.scheduling, folder, spec.lanes, longest)
    supervisor = Supervisor(services, lambda name: folder / f"{name}.log", Quiet())
    try:
        await supervisor.start()
        beginnings = [own[0][: int(work.cached[work.begin[i]])] for i, own in enumerate(texts)]
        store = f"{management_address(STORE)}:{services[0].address.rpartition(':')[2]}"
        await seed_store(store, node.model, BackendSettings.synthetic_vocab, beginnings)
        await asyncio.sleep(SETTLE_S)
        before = kv_bytes(spec.cluster)
        watch = _watch(spec.cluster, {member.plan.name: member.child.pid for member in supervisor.members})
        watching = asyncio.create_task(watch.run())
        try:
            turns = await go_through(gateway_url(), MODEL, work, texts)
        finally:
            watching.cancel()
        watch.take()
        await asyncio.sleep(SETTLE_S)  # what is stored last is counted when it is durable
        after = kv_bytes(spec.cluster)
        return _result(spec, watch, turns, before, after), turns
    finally:
        await supervisor.stop()


def _watch(cluster: Cluster, pids: Mapping[str, int]) -> Watch:
    devices = {}
    for number in node_numbers(cluster):
        name, pid = cluster.engine(number), pids[cluster.engine(number)]
        devices[f"{name} storage in"] = pids["kvstore"], f"node{number}"
        devices[f"{name} compute"] = pid, "compute"
    return Watch({**pids, "agents": os.getpid()}, devices)


def _result(
    spec: Spec,
    watch: Watch,
    turns: list[Turn],
    before: dict[str, dict[str, int]],
    after: dict[str, dict[str, int]],
) -> Result:
    storage = {name.split()[0]: name for name in watch.samples[0].links if name.endswith("storage in")}
    busy = watch.busy_each_second()
    return Result(
        jct_s=max(turn.finished_s for turn in turns),
        turns=len(turns),
        hit_tokens=sum(turn.cached_tokens for turn in turns),
        wanted_hit_tokens=sum(turn.wanted_cached_tokens for turn in turns),
        links=watch.moved(),
        kv={engine: {link: after[engine][link] - before[engine][link] for link in after[engine]} for engine in after},
        storage_each_second={engine: watch.sent_each_second(name) for engine, name in storage.items()},
        cores=watch.cores_by_process(),
        busy=sum(busy) / len(busy),
        stolen=watch.stolen(),
        saturated=watch.why_saturated(),
    )


def kv_bytes(cluster: Cluster) -> dict[str, dict[str, int]]:
    """What each engine has moved over each link, by its own count."""
    return {
        cluster.engine(number): link_bytes(metrics_page(metrics_address(number))) for number in node_numbers(cluster)
    }


def main() -> None:
    spec = Spec.read(Path(sys.argv[1]))
    result, turns = asyncio.run(run(spec))
    folder = Path(spec.folder)
    (folder / "log.jsonl").write_text("\n".join(log_lines(turns)) + "\n")
    (folder / "result.json").write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
