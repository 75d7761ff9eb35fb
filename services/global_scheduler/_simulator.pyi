"""Types of the native module `_simulator` (simulator/native/simulator_module.cpp): the simulator's event core."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

class PrefillCost:
    """Seconds of a prefill step, and of its tokens (simulator/costs.py)."""

    step_s: float
    weight_s: float
    group_token_s: float
    engine_token_s: float
    pair_s: float
    selected_s: float
    selected: float
    def __init__(self) -> None: ...

class DecodeCost:
    """Seconds of a decode step, and of its tokens (simulator/costs.py)."""

    step_s: float
    weight_s: float
    group_token_s: float
    engine_token_s: float
    context_s: float
    selected_s: float
    selected: float
    def __init__(self) -> None: ...

class Config:
    """Bytes, bytes/s, seconds, tokens; simulator/native/config.hpp says what each is."""

    prefill_nodes: int
    decode_nodes: int
    engines_per_node: int
    prefill_group: int
    decode_group: int
    storage_read: float
    storage_write: float
    dram: float
    compute_nic: float
    reads_in_flight: int
    loads_in_flight: int
    block_tokens: int
    layers: int
    kv_bytes: float
    prefill_kv_tokens: int
    decode_kv_tokens: int
    layerwise: bool
    free_io: bool
    series_s: float
    prefill: PrefillCost
    decode: DecodeCost
    def __init__(self) -> None: ...

class Trace:
    """Turns of trajectories. ValueError for one that doesn't hold together."""

    def __init__(
        self,
        begin: npt.NDArray[np.int32],
        prompt: npt.NDArray[np.int32],
        cached: npt.NDArray[np.int32],
        output: npt.NDArray[np.int32],
        pause: npt.NDArray[np.float64],
    ) -> None: ...

class Simulation:
    """The cluster. `choose` is D13: cached and wanted tokens of waiting prompts -> tokens of the first ones."""

    now: float
    unfinished: int
    turns_done: int
    def __init__(
        self, config: Config, trace: Trace, choose: Callable[[Sequence[int], Sequence[int]], Sequence[int]]
    ) -> None: ...
    def add_agent(self, start: float, trajectory: int) -> None: ...
    def advance(self, until: float) -> bool: ...
    def next(self) -> float: ...
    def take_arrivals(self) -> list[tuple[int, int, int, int, int]]:
        """(request, agent, prompt, cached, output tokens) since the last call."""

    def take_loads(self) -> list[tuple[int, int, int, int, int]]:
        """(engine, requests, tokens, read queue tokens, free HBM tokens) of engines that changed since the last."""

    def place(
        self, request: int, prefill: int, decode: int, near_tokens: int, near_held: int = 0, far_held: int = 0
    ) -> None: ...
    def agents_finished(self) -> list[float]: ...
    def records(self) -> bytes: ...
    def ledger(self) -> dict[str, Any]: ...
    def reads(self) -> list[float]: ...
    def attention_largest(self) -> list[float]: ...
    def attention_average(self) -> list[float]: ...

class FlowNetwork:
    """Max-min fair flows, for tests against an obvious reference."""

    def __init__(self) -> None: ...
    def add_link(self, bytes_per_s: float) -> int: ...
    def start(self, now: float, bytes: float, links: Sequence[int], weights: Sequence[float]) -> int: ...
    def finish(self, flow: int) -> int: ...
    def settle(self, now: float) -> None: ...
    def rate(self, flow: int) -> float: ...
    def next(self) -> float: ...
    def next_flow(self) -> int: ...
