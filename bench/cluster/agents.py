"""Agents that go through their turns one after the other: each prompt is all that came before, and some more."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from services.cli.load.client import send
from services.cli.load.connection import Connections, Target
from services.common.keys import BLOCK_TOKENS, block_keys, root_key
from services.global_scheduler.simulator.workload import Workload
from services.gpu_backend.engine import StepKind
from services.gpu_backend.engines.offline import Offline, Run
from services.gpu_backend.engines.synthetic import Pace, SyntheticEngine, SyntheticSettings
from services.gpu_backend.engines.synthetic_model import SyntheticModel
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import Block, StoreClient

Tokens = NDArray[np.uint32]

WORDS = tuple(int(word) for word in BackendSettings.synthetic_words)
PLAIN_IDS = (1_000, 40_000)
"""Ids of ordinary words in the default model's vocabulary."""
SEEDING_BATCH = 32


class AgentFailed(Exception):
    """A turn did not end as it should; the message says which, and how."""


@dataclass(frozen=True)
class Turn:
    """What an agent saw of one; a line of the log that `hostless sim replay` reads. Seconds since the run's start."""

    agent: int
    turn: int
    arrived_s: float
    prompt_tokens: int
    cached_tokens: int
    wanted_cached_tokens: int  # what the workload says
    output_tokens: int
    ttft_s: float
    ttst_s: float  # from the first token to the second, which another engine generates
    tpot_s: float | None  # from then on
    finished_s: float


def prompts(work: Workload, seed: int) -> list[list[Tokens]]:
    """Of each agent and turn: random ids, and the synthetic engine's own answers."""
    rng = np.random.default_rng([seed, 3])
    words = np.array(WORDS, np.uint32)
    result = []
    for begin, end in zip(work.begin, work.begin[1:], strict=False):
        text = np.zeros(0, np.uint32)
        own = []
        for turn in range(begin, end):
            fresh = rng.integers(*PLAIN_IDS, int(work.prompt[turn]) - len(text), dtype=np.uint32)
            prompt = np.concatenate([text, fresh])
            own.append(prompt)
            places = np.arange(len(prompt), len(prompt) + int(work.output[turn]))
            text = np.concatenate([prompt, words[places % len(words)]])
        result.append(own)
    return result


async def seed_store(store: str, model: SyntheticModel, vocab: int, beginnings: Sequence[Tokens]) -> int:
    """Puts the blocks of these tokens (whole blocks) into the store, as an engine of this model would have computed
    them; returns their bytes."""
    total = 0
    async with StoreClient(store) as client:
        for tokens in beginnings:
            layout, pages = _computed(model, vocab, tokens)
            blocks = _blocks(root_key(layout, ""), tokens, pages.shape[1])
            for at in range(0, len(blocks), SEEDING_BATCH):
                part = blocks[at : at + SEEDING_BATCH]
                async with client.write(part, timeout_s=10.0) as batch:
                    for number in range(len(part)):
                        await batch.put(number, pages[at + number])
                    if any(reasons := await batch.commit()):
                        raise AgentFailed(f"the store did not take a block: {next(filter(None, reasons))}")
            total += len(blocks) * pages.shape[1]
    return total


def _computed(model: SyntheticModel, vocab: int, tokens: Tokens) -> tuple[str, NDArray[np.uint8]]:
    """KV layout, and the pages of a prompt."""
    settings = SyntheticSettings(WORDS, vocab, max_context=len(tokens) + 1, model=model)
    engine = SyntheticEngine(settings, Pace(sleep=lambda _: None))
    engine.allocate(len(tokens) // BLOCK_TOKENS + 1, 1, len(tokens))
    Offline(engine, 1).step(StepKind.PREFILL, [(0, Run(tokens.tolist(), 1), len(tokens))])
    return engine.geometry.kv_layout, engine.kv_pages


def _blocks(root: bytes, tokens: Tokens, block_bytes: int) -> list[Block]:
    keys = block_keys(root, tokens)
    parents = [root, *keys]
    pieces = tokens.astype("<u4").reshape(-1, BLOCK_TOKENS)
    return [Block(key, parents[i], i, block_bytes, pieces[i].tobytes()) for i, key in enumerate(keys)]


async def go_through(url: str, model: str, work: Workload, texts: Sequence[Sequence[Tokens]]) -> list[Turn]:
    """All agents at once. Raises AgentFailed at the first turn that goes wrong."""
    connections = Connections(Target(f"{url}/v1/completions"))
    start = time.perf_counter()
    turns: list[Turn] = []

    async def agent(number: int) -> None:
        for turn, prompt in enumerate(texts[number]):
            row = int(work.begin[number]) + turn
            output, cached = int(work.output[row]), int(work.cached[row])
            turns.append(await _turn(connections, model, start, (number, turn), prompt, output, cached))

    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(work.agents):
                tasks.create_task(agent(number))
    finally:
        connections.close()
    return sorted(turns, key=lambda turn: (turn.agent, turn.turn))


async def _turn(
    connections: Connections, model: str, start: float, which: tuple[int, int], prompt: Tokens, output: int, cached: int
) -> Turn:
    body = {"model": model, "prompt": prompt.tolist(), "max_tokens": output, "temperature": 0, "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
    seen = await send(connections, json.dumps(body).encode())
    ended = time.perf_counter()
    if seen.error or seen.prompt_tokens != len(prompt) or seen.completion_tokens != output:
        what = seen.error or f"{seen.prompt_tokens} prompt and {seen.completion_tokens} new tokens"
        raise AgentFailed(f"agent {which[0]}, turn {which[1]}, {len(prompt)} prompt and {output} new tokens: {what}")
    if len(seen.stamps) != output:
        raise AgentFailed(f"agent {which[0]}, turn {which[1]}: {output} tokens came in {len(seen.stamps)} events")
    first, second, last = seen.stamps[0], seen.stamps[1], seen.stamps[-1]
    return Turn(
        agent=which[0],
        turn=which[1],
        arrived_s=seen.sent - start,
        prompt_tokens=len(prompt),
        cached_tokens=seen.cached_tokens,
        wanted_cached_tokens=cached,
        output_tokens=output,
        ttft_s=first - seen.sent,
        ttst_s=second - first,
        tpot_s=(last - second) / (output - 2) if output > 2 else None,
        finished_s=ended - start,
    )


def log_lines(turns: Sequence[Turn]) -> Iterator[str]:
    """A line a turn, without what was not measured."""
    for turn in turns:
        yield json.dumps({name: value for name, value in asdict(turn).items() if value is not None})
