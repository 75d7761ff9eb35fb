"""Seconds of a step by a roofline: arithmetic or bytes, whichever takes longer, at the calibrated part of the peak."""

from services.global_scheduler._simulator import DecodeCost, PrefillCost
from services.global_scheduler.simulator.hardware import Hardware
from services.global_scheduler.simulator.shapes import ModelShape


def prefill_cost(model: ModelShape, hardware: Hardware, group_engines: int) -> PrefillCost:
    """Of a group of so many engines that step together. Attention and projections take as long as the slowest engine's;
    experts are shared evenly."""
    gpus = model.engine_gpus
    gemm = gpus * hardware.flops(model.weight_bytes) * hardware.efficiency.gemm
    index = gpus * hardware.flops(model.weight_bytes) * hardware.efficiency.attention
    attend = gpus * hardware.flops(2) * hardware.efficiency.attention
    cost = PrefillCost()
    cost.step_s = _latency_s(model, hardware)
    cost.weight_s = _weight_bytes(model, group_engines) / gpus / hardware.hbm_bytes_per_s
    cost.engine_token_s = 2 * model.engine_parameters / gemm
    cost.group_token_s = 2 * model.active_expert_parameters / gemm
    cost.pair_s = model.layers * model.attention.pair_flops / index
    cost.selected_s = model.layers * model.attention.selected_flops / attend
    cost.selected = model.attention.selected
    return cost


def decode_cost(model: ModelShape, hardware: Hardware, group_engines: int) -> DecodeCost:
    """Of a group of so many engines. Bound by bytes: weights once a step, the context of every request."""
    gpus = model.engine_gpus
    gemm = gpus * hardware.flops(model.weight_bytes) * hardware.efficiency.gemm
    cost = DecodeCost()
    cost.step_s = _latency_s(model, hardware)
    cost.weight_s = _weight_bytes(model, group_engines) / gpus / hardware.hbm_bytes_per_s
    cost.engine_token_s = 2 * model.engine_parameters / gemm
    cost.group_token_s = 2 * model.active_expert_parameters / gemm
    cost.context_s = model.layers * model.attention.context_bytes / gpus / hardware.hbm_bytes_per_s
    cost.selected_s = model.layers * model.attention.selected_bytes / gpus / hardware.hbm_bytes_per_s
    cost.selected = model.attention.selected
    return cost


def kv_capacity_tokens(model: ModelShape, hardware: Hardware, group_engines: int) -> int:
    """Tokens whose KV an engine's HBM holds beside the weights. Raises ValueError when not even the weights fit."""
    room = model.engine_gpus * hardware.hbm_gbytes * 1e9 * hardware.efficiency.hbm_capacity
    left = room - _weight_bytes(model, group_engines)
    if left <= 0:
        raise ValueError(
            f"{model.name}: {_weight_bytes(model, group_engines) / 1e9:.0f} GB of weights do not fit an engine's "
            f"{room / 1e9:.0f} GB with {group_engines} engines a group; use more nodes a group"
        )
    return int(left // model.kv_token_bytes)


def _weight_bytes(model: ModelShape, group_engines: int) -> float:
    """Of an engine: its own copy, and its share of the group's experts."""
    return model.weight_bytes * (model.engine_parameters + model.expert_parameters / group_engines)


def _latency_s(model: ModelShape, hardware: Hardware) -> float:
    efficiency = hardware.efficiency
    ms = model.expert_layers * efficiency.expert_layer_ms + model.dense_layers * efficiency.dense_layer_ms
    return ms / 1000
