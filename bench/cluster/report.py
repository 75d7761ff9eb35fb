"""What a run of bench/dualpath.py says: what crossed which link, how even, how long; as text and as a picture."""

from collections.abc import Mapping
from typing import Any

from bench.cluster.mesh import Cluster
from bench.cluster.run import Result
from services.global_scheduler.simulator.charts import bars

OVERHEAD = 0.06
"""Of a link's bytes: headers, of which the fabric has one for each small piece on so slow a link (D8)."""
ACKNOWLEDGED = 0.02
"""Of what goes the other way."""
EDGE_BYTES = 1 << 20
"""Under way when a run begins or ends."""


def disagreements(result: Result, block_bytes: int, prompt_blocks: int, cluster: Cluster) -> list[str]:
    """Where bytes did not go as D1 and D2 say. Empty: all did.

    Of a run's links by the engines' count: the store sends each hit once, to one side or the other (split: both);
    what the decode side reads crosses to the prefill side; the rest of each prompt crosses to the decode side. And
    each device's count is what the engines say, headers aside.
    """
    total = {link: sum(kv[link] for kv in result.kv.values()) for link in next(iter(result.kv.values()))}
    near, far = total["store_to_prefill_buffer"], total["store_to_decode_buffer"]
    wrong = []
    for what, counted, expected in (
        ("read from the store", near + far, result.hit_tokens * block_bytes // 64),
        ("read by the decode side, into prefill pages", total["decode_buffer_to_prefill_pages"], far),
        ("into the decode side's buffer", total["prefill_pages_to_decode_buffer"], prompt_blocks * block_bytes - far),
    ):
        if counted != expected:
            wrong.append(f"{what}: {counted} bytes, not {expected}")
    for number in range(1, len(cluster.roles) + 1):
        engine = cluster.engine(number)
        kv = result.kv[engine]
        read = kv["store_to_prefill_buffer"] + kv["store_to_decode_buffer"]
        stored, device = result.links[f"{engine} storage in"]
        wrong += _differ(f"{engine}'s storage link", device, read, stored)
    prefill = [engine for engine in result.kv if engine.startswith("prefill")]
    sent = sum(result.links[f"{engine} compute"][1] for engine in prefill)
    received = sum(result.links[f"{engine} compute"][0] for engine in prefill)
    wrong += _differ("prefill nodes' compute links, out", sent, total["prefill_pages_to_decode_buffer"], received)
    wrong += _differ("prefill nodes' compute links, in", received, total["decode_buffer_to_prefill_pages"], sent)
    return wrong


def _differ(what: str, device: int, counted: int, other_way: int) -> list[str]:
    if abs(device - counted) <= OVERHEAD * counted + ACKNOWLEDGED * other_way + EDGE_BYTES:
        return []
    return [f"{what}: the device counts {device} bytes, the engines {counted}"]


def balance(result: Result) -> float:
    """Busiest storage link by the average, over seconds, weighted by their bytes."""
    seconds = list(zip(*result.storage_each_second.values(), strict=True))
    links = len(result.storage_each_second)
    total = sum(map(sum, seconds))
    return sum(map(max, seconds)) * links / total if total else 1.0


def show(cluster: str, system: str, row: Mapping[str, Any]) -> None:
    print(f"\n{cluster} {system}: JCT {row['jct_s']:.1f} s, {row['turns']} turns, hits {row['hit_tokens']} tokens of "
          f"{row['wanted_hit_tokens']}; storage links max/avg {row['balance']:.2f} (predicted "
          f"{row['predicted_balance']:.2f})")  # fmt: skip
    for quantity, pair in row["fidelity"].items():
        predicted, measured, error = pair["predicted"], pair["measured"], pair["error"]
        print(f"  {quantity:12} predicted {predicted:8.3f}  measured {measured:8.3f}  {error:+.1%}")
    for link, (received, sent) in row["links"].items():
        print(f"  {link:24} received {received / 1e6:9.1f} MB, sent {sent / 1e6:9.1f} MB")
    cores = ", ".join(f"{name} {used:.2f}" for name, used in row["cores"].items())
    print(f"  cores: {cores}; machine busy {row['busy']:.0%}, stolen {row['stolen']:.0%} {row['saturated']}")
    for line in row["disagreements"]:
        print(f"  NOT AS D1 AND D2 SAY: {line}")


def svg(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """JCT by cluster, a bar a system, live and simulated; nothing where a system was not run."""
    clusters = list(dict.fromkeys(name.split()[0] for name in runs))
    systems = list(dict.fromkeys(name.split()[1] for name in runs))
    labels = [f"{cluster} {kind}" for cluster in clusters for kind in ("live", "simulated")]
    series: dict[str, list[float]] = {system: [] for system in systems}
    for cluster in clusters:
        for system in systems:
            jct = runs.get(f"{cluster} {system}", {}).get("fidelity", {}).get("JCT", {})
            series[system] += [jct.get("measured", 0.0), jct.get("predicted", 0.0)]
    return bars("Time to finish, s", labels, series)
