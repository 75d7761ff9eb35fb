"""A model, its node and its agents' traces made small enough for two cores, all proportions kept.

A node here is one GPU of a real node with its part of the storage NIC: with 8 GPUs and 8 compute NICs to a storage NIC
the two links are 1:8, as theirs. A token here stands for `tokens` real ones, and has as many bytes as its layers and
width make; the links are slowed until they move it in the time that the real ones need. Time is real time.
"""

from dataclasses import asdict, dataclass

import numpy as np

from services.global_scheduler.simulator.costs import decode_cost, kv_capacity_tokens, prefill_cost
from services.global_scheduler.simulator.hardware import Hardware
from services.global_scheduler.simulator.shapes import ModelShape
from services.global_scheduler.simulator.workload import PUBLISHED, Workload
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.engines.synthetic_model import DecodeCost, PrefillCost, SyntheticModel


@dataclass(frozen=True)
class Scale:
    tokens: int = 8  # real ones that one here stands for
    layers: int = 6  # of the engine; the real ones are more, and each is moved by itself
    width: int = 16  # words of K, and of V, a token and layer
    time: float = 1.0  # seconds here for one there


@dataclass(frozen=True)
class SmallNode:
    """What a node of the experiment has."""

    model: SyntheticModel
    storage_bytes_per_s: float
    compute_bytes_per_s: float
    pages: int  # of KV
    step_tokens: int


def small_node(model: ModelShape, hardware: Hardware, scale: Scale) -> SmallNode:
    """Of a cluster whose experts are spread over a node."""
    group = hardware.gpus // model.engine_gpus
    small = SyntheticModel(
        scale.layers,
        scale.width,
        PrefillCost(**_scaled(_fields(prefill_cost(model, hardware, group), PrefillCost), scale, steps=1)),
        DecodeCost(**_scaled(_fields(decode_cost(model, hardware, group), DecodeCost), scale, steps=scale.tokens)),
    )
    shrunk = small.token_bytes / (model.kv_token_bytes * scale.tokens) / scale.time
    nic = hardware.nic_bytes_per_s * shrunk
    return SmallNode(
        small,
        nic * hardware.storage_nics / group,
        nic * model.engine_gpus,
        kv_capacity_tokens(model, hardware, group) // scale.tokens // PAGE_TOKENS,
        step_tokens=16_384 // scale.tokens,
    )


def _fields(cost: object, kind: type) -> dict[str, float]:
    return {name: float(getattr(cost, name)) for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def _scaled(cost: dict[str, float], scale: Scale, steps: int) -> dict[str, float]:
    """`steps`: real ones that a step here stands for: a chunk of a prompt is computed in one step there and here, but
    a token of an answer is a step each."""
    k, t = scale.tokens, scale.time
    factors = {"step_s": steps, "weight_s": steps, "pair_s": k * k, "selected_s": k * k, "context_s": k * k}
    return {name: value / k if name == "selected" else value * factors.get(name, k) * t for name, value in cost.items()}


def agents(name: str, scale: Scale, count: int, turns: int, seed: int) -> Workload:
    """`count` agents that all start at once, each somewhere in a trajectory with the published statistics, of which it
    goes through `turns` turns: what the trajectory has before is in the store already. Trajectories grow evenly, so
    contexts are spread evenly around their mean; what a turn appends and what it generates are exponential, and at
    least 2: an answer of one token would never reach a decode node."""
    real, rng = PUBLISHED[name], np.random.default_rng([seed, 2])
    context, append, output = (getattr(real, field) / scale.tokens for field in ("context", "append", "output"))
    most = real.total / scale.tokens - context  # more or less than the mean
    middle = rng.permutation(context + most * (2 * (np.arange(count) + 0.5) / count - 1))
    appended, generated = (2 + rng.exponential(mean - 2, (count, turns)).astype(np.int64) for mean in (append, output))
    grown = np.cumsum(appended + generated, axis=1) - generated
    prompt = np.maximum(middle - turns / 2 * (append + output), 0).astype(np.int64)[:, None] + grown
    written = prompt - appended - 1  # an answer's last token is never written to the KV cache
    return Workload(
        begin=np.arange(count + 1, dtype=np.int32) * turns,
        prompt=prompt.reshape(-1).astype(np.int32),
        cached=(written // PAGE_TOKENS * PAGE_TOKENS).reshape(-1).astype(np.int32),
        output=generated.reshape(-1).astype(np.int32),
        pause_s=np.zeros(count * turns),
        start_s=np.zeros(count),
        trajectory=np.arange(count, dtype=np.int32),
    )


def model_file(model: SyntheticModel) -> dict[str, object]:
    """As engines/synthetic_model.py reads it."""
    return asdict(model)
