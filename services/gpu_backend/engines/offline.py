"""Runs prompts through an engine with no ring and no scheduler, to test, compare and measure engines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.engine import PAGE_TOKENS, STEP_SEQUENCE, Engine, StepKind, StepView


@dataclass
class Run:
    """One request: its prompt, how to sample, and what came out."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    uniforms: Sequence[float] = ()  # one a new token; needed if temperature > 0
    output: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is in the pages

    @property
    def finished(self) -> bool:
        return len(self.output) >= self.max_tokens


class Offline:
    """Lanes of an allocated engine, each holding at most one run. Pages are given to lanes by `page_order`
    (a permutation of the engine's pages), so that tests can scatter them."""

    def __init__(self, engine: Engine, lanes: int, page_order: NDArray[np.intp] | None = None) -> None:
        pages = len(engine.kv_pages)
        order = np.arange(pages) if page_order is None else page_order
        lane_pages = pages // lanes
        self._engine = engine
        self.block_tables = order[: lanes * lane_pages].reshape(lanes, lane_pages).astype(np.uint32)
        self.sequences = np.zeros(lanes, STEP_SEQUENCE)
        self.out_tokens = np.zeros(lanes, np.uint32)

    def step(self, kind: StepKind, work: Sequence[tuple[int, Run, int]]) -> None:
        """One step of (lane, run, new tokens); appends a token to each run whose tokens are all computed."""
        tokens: list[int] = []
        for i, (lane, run, count) in enumerate(work):
            known = [*run.prompt, *run.output]
            row = self.sequences[i]
            row["lane"], row["slot"] = lane, lane
            row["token_begin"], row["token_count"], row["position"] = len(tokens), count, run.computed
            row["sample"] = run.computed + count == len(known)
            row["temperature"], row["top_p"], row["top_k"] = run.temperature, run.top_p, run.top_k
            row["uniform"] = run.uniforms[len(run.output)] if run.uniforms else 0.0
            tokens += known[run.computed : run.computed + count]
        self._engine.step(
            StepView(
                kind=kind,
                sequence_count=len(work),
                token_count=len(tokens),
                sequences=self.sequences,
                tokens=np.array(tokens, np.uint32),
                block_tables=self.block_tables,
                out_tokens=self.out_tokens,
            )
        )
        for i, (_, run, count) in enumerate(work):
            run.computed += count
            if self.sequences["sample"][i]:
                run.output.append(int(self.out_tokens[i]))

    def prefill(self, lane: int, run: Run, chunk: int, beside: Sequence[tuple[int, Run]] = ()) -> None:
        """Computes a prompt in chunks, and samples its first token. Those of `beside` get a token with each chunk."""
        for begin in range(0, len(run.prompt), chunk):
            count = min(chunk, len(run.prompt) - begin)
            decodes = [(other, running, 1) for other, running in beside if not running.finished]
            self.step(StepKind.PREFILL, [(lane, run, count), *decodes])

    def decode(self, runs: Sequence[tuple[int, Run]]) -> Iterator[int]:
        """Decodes until all have finished; yields the number of sequences in each step."""
        while active := [(lane, run, 1) for lane, run in runs if not run.finished]:
            self.step(StepKind.DECODE, active)
            yield len(active)


def generate(
    engine: Engine, runs: Sequence[Run], chunk: int, page_order: NDArray[np.intp] | None = None, *, mixed: bool = False
) -> list[list[int]]:
    """All runs at once, a lane each: prefill one after the other, then decode together. mixed: those whose prompts are
    computed decode beside the next one's prompt already."""
    offline = Offline(engine, len(runs), page_order)
    longest = max(len(run.prompt) + run.max_tokens for run in runs)
    room = offline.block_tables.shape[1] * PAGE_TOKENS
    if longest > room:
        raise ValueError(f"{longest} tokens don't fit a lane of {room}: allocate more pages")
    for lane, run in enumerate(runs):
        offline.prefill(lane, run, chunk, list(enumerate(runs[:lane])) if mixed else ())
    for _ in offline.decode(list(enumerate(runs))):
        pass
    return [run.output for run in runs]
