"""DualPath live on one machine: nodes with a storage link and a compute link each, and what a second path gains (D1-D3,
D9-D12, D15).

Prefill nodes, decode nodes and the store are network namespaces (cluster/network.py); engines take as long, and have
as large a KV, as a given model's, all made small alike (cluster/scale.py); agents go through turns of the published
trace (cluster/agents.py). Prints the time to finish of each system and the simulator's for the same log, what went
over each link against what D1 and D2 say, how even the storage links were used, and the CPU of each process. A run in
which the cores were the bottleneck is refused. Needs root.

    python -m bench.dualpath --clusters 1P1D,2P1D,1P2D --systems basic,dualpath,split,oracle \\
        --json docs/benchmarks/dualpath.json --svg docs/benchmarks/dualpath.svg
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from bench.cluster.mesh import Cluster, Scheduling
from bench.cluster.network import CONTROL, UNLIMITED, Rates, network
from bench.cluster.report import balance, disagreements, show, svg
from bench.cluster.run import Result, Spec
from bench.cluster.scale import Scale, SmallNode, small_node
from bench.common.child import end
from bench.common.machine import machine
from services.global_scheduler.simulator.driver import simulate
from services.global_scheduler.simulator.fidelity import Comparison, LiveMesh, compare
from services.global_scheduler.simulator.hardware import load_hardware
from services.global_scheduler.simulator.importing import read_requests
from services.global_scheduler.simulator.shapes import load_model
from services.global_scheduler.simulator.systems import DUALPATH, LAYERWISE, ORACLE, ROUND_ROBIN, SPLIT, System
from services.gpu_backend.kv_agent.settings import AgentSettings

SYSTEMS = {"basic": LAYERWISE, "dualpath": DUALPATH, "split": SPLIT, "round-robin": ROUND_ROBIN, "oracle": ORACLE}
"""As the simulator knows them. Without any I/O the store and the links are as fast as this machine."""


@dataclass(frozen=True)
class Refused(Exception):
    """A run that says nothing."""

    why: str


def main() -> None:
    signal.signal(signal.SIGTERM, _leave)  # so that namespaces go on every way out
    options = _options()
    node = small_node(load_model(options.model), load_hardware(options.hardware), _scale(options))
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"runs": {}}
    known["machine"], known["setup"] = machine(), _setup(options, node)
    for cluster in map(_cluster, options.clusters.split(",")):
        for name in options.systems.split(","):
            try:
                row = _point(options, node, cluster, name)
            except Refused as refused:
                print(f"{cluster.name} {name}: refused: {refused.why}")
                continue
            known["runs"][f"{cluster.name} {name}"] = row
            show(cluster.name, name, row)
            if options.json:
                options.json.write_text(json.dumps(known, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(svg(known["runs"]))


def _point(options: argparse.Namespace, node: SmallNode, cluster: Cluster, name: str) -> dict[str, Any]:
    """One system on one cluster: live, then predicted from its log. Raises Refused."""
    system = SYSTEMS[name]
    mesh = _mesh(options, node, cluster)
    rates = Rates(node.storage_bytes_per_s, node.compute_bytes_per_s)
    with tempfile.TemporaryDirectory(prefix="dualpath-") as folder:
        spec = _spec(options, cluster, mesh, system, folder)
        result = _live(spec, Rates(UNLIMITED, UNLIMITED) if system.free_io else rates, options.limit)
        log = Path(folder) / "log.jsonl"
        if options.keep:
            _keep(options.keep / f"{cluster.name}-{name}", Path(folder), mesh)
        if result.saturated and not options.anyway:
            raise Refused(f"{result.saturated}; {result.cores}")
        outcome = simulate(mesh, mesh.tuned(system), read_requests(log), mesh.timing)
        compared = compare(outcome, log)
        block = node.model.token_bytes * 64
        blocks = sum(-(-json.loads(line)["prompt_tokens"] // 64) for line in log.read_text().splitlines())
    return {
        "jct_s": result.jct_s,
        "turns": result.turns,
        "hit_tokens": result.hit_tokens,
        "wanted_hit_tokens": result.wanted_hit_tokens,
        "fidelity": {row.quantity: _pair(row) for row in compared},
        "balance": balance(result),
        "predicted_balance": outcome.nic_balance,
        "disagreements": disagreements(result, block, blocks, cluster),
        "links": result.links,
        "kv": result.kv,
        "cores": {who: round(cores, 3) for who, cores in result.cores.items()},
        "busy": round(result.busy, 3),
        "stolen": round(result.stolen, 3),
        "saturated": result.saturated,
        "storage_each_second": {who: list(map(round, rates)) for who, rates in result.storage_each_second.items()},
    }


def _live(spec: Spec, rates: Rates, limit_s: float) -> Result:
    with network(len(spec.cluster.roles), rates) as net:
        placed = replace(spec, prefix=net.prefix)
        path = Path(spec.folder) / "spec.json"
        path.write_text(json.dumps(asdict(placed)))
        command = net.command(CONTROL, sys.executable, "-m", "bench.cluster.run", str(path))
        process = subprocess.Popen(command)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{spec.cluster.name}: the run has not ended within {limit_s:g} s (--limit)") from None
        finally:
            if process.poll() is None:
                process.terminate()
                end(process)
    if code:
        found = sorted(Path(spec.folder).glob("*.log"))
        logs = "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in found)
        raise SystemExit(f"{spec.cluster.name}: the run ended with exit code {code}\n{logs}")
    return Result(**json.loads((Path(spec.folder) / "result.json").read_text()))


def _mesh(options: argparse.Namespace, node: SmallNode, cluster: Cluster) -> LiveMesh:
    return LiveMesh(
        model_name=options.model,
        prefill_nodes=cluster.prefill,
        decode_nodes=cluster.decode,
        storage_bytes_per_s=node.storage_bytes_per_s,
        compute_bytes_per_s=node.compute_bytes_per_s,
        layers=node.model.layers,
        kv_bytes=node.model.token_bytes,
        prefill_pages=node.pages,
        decode_pages=node.pages,
        prefill=asdict(node.model.prefill),
        decode=asdict(node.model.decode),
        step_tokens=node.step_tokens,
        alpha_tokens=DUALPATH.parameters.alpha_tokens // options.tokens,
        beta_tokens=DUALPATH.parameters.beta_tokens // options.tokens,
        reads_in_flight=AgentSettings().load_workers,
    )


def _spec(options: argparse.Namespace, cluster: Cluster, mesh: LiveMesh, system: System, folder: str) -> Spec:
    scheduling = Scheduling(system.policy, system.parameters.split_reads, mesh.alpha_tokens, mesh.beta_tokens)
    return Spec(
        prefix="",
        folder=folder,
        cluster=cluster,
        scheduling=scheduling,
        model=options.model,
        hardware=options.hardware,
        trace=options.trace,
        scale=_scale(options),
        agents=options.agents,
        turns=options.turns,
        lanes=options.lanes,
        seed=options.seed,
    )


def _keep(where: Path, folder: Path, mesh: LiveMesh) -> None:
    """The log and the services' own, and what `hostless sim replay` needs."""
    where.mkdir(parents=True, exist_ok=True)
    mesh.write(where / "mesh.json")
    for file in (*folder.glob("*.log"), *folder.glob("*.json*")):
        (where / file.name).write_bytes(file.read_bytes())


def _setup(options: argparse.Namespace, node: SmallNode) -> dict[str, Any]:
    return {
        **{name: getattr(options, name) for name in ("model", "hardware", "trace", "tokens", "time")},
        **{name: getattr(options, name) for name in ("agents", "turns", "seed")},
        "storage_mb_per_s": round(node.storage_bytes_per_s / 1e6, 2),
        "compute_mb_per_s": round(node.compute_bytes_per_s / 1e6, 2),
        "kv_bytes_a_token": node.model.token_bytes,
        "pages": node.pages,
    }


def _pair(row: Comparison) -> dict[str, float]:
    return {"predicted": row.predicted, "measured": row.measured, "error": row.error}


def _scale(options: argparse.Namespace) -> Scale:
    return Scale(options.tokens, options.layers, options.width, options.time)


def _cluster(text: str) -> Cluster:
    match = re.fullmatch(r"(\d+)P(\d+)D", text)
    if not match:
        raise SystemExit(f"--clusters: {text} is none such as 1P1D")
    return Cluster(int(match[1]), int(match[2]))


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", default="1P1D", help="prefill and decode nodes, comma-separated")
    parser.add_argument("--systems", default="basic,dualpath,oracle", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--model", default="ds-27b", help="a shape in simulator/models.toml")
    parser.add_argument("--hardware", default="hopper", help="a node in simulator/hardware.toml")
    parser.add_argument("--trace", default="64k", help="statistics of agents, simulator/workload.py")
    parser.add_argument("--tokens", type=int, default=8, help="real tokens that one here stands for")
    parser.add_argument("--time", type=float, default=1.0, help="seconds here for a real one")
    parser.add_argument("--layers", type=int, default=6, help="of the engine")
    parser.add_argument("--width", type=int, default=16, help="words of K, and of V, a token and layer")
    parser.add_argument("--agents", type=int, default=64, help="that all start at once")
    parser.add_argument("--turns", type=int, default=8, help="of each agent")
    parser.add_argument("--lanes", type=int, default=256, help="most requests of an engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")
    parser.add_argument("--json", type=Path, help="results; those of other runs that are in it stay")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for logs, and for what `hostless sim replay` needs")
    parser.add_argument("--anyway", action="store_true", help="don't refuse a run whose cores were saturated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
