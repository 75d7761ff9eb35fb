"""Conversations of agents with prefill and decode apart, against the unified engine: the same tokens, whoever reads.

Each turn's prompt is all that was said before and something new, and turns end at and beside the borders of blocks of
64 tokens: half of the conversations place the end of the prompt there, half the end of what the answer leaves in the
store. Every fourth group of them shares its first block. A unified engine without a store answers first, from nothing
each time. Then each mesh of prefill and decode engines gets the same prompts, turn by turn, many conversations at once;
prefill side, decode side and both sides read in turn. A turn is right if its text is. Hits that are as long as they
should be say that the tokens' ids are, too: stored blocks are found by them.

Ends with exit code 1 on any difference.

    python -m bench.conversations [--conversations 200] [--meshes 1P1D 2P1D 1P2D 2P2D] [--json FILE]
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.agents.turns import Conversation, Tokens, blocks_of, conversations
from bench.common.machine import machine
from services.cli.mesh.plan import MeshOptions
from services.common.keys import BLOCK_TOKENS, block_keys, root_key
from services.common.paths import models_dir
from services.global_scheduler.client import SchedulerClient
from services.kvstore.client import StoreClient
from services.tokenizer.model_text import ModelText, load
from tests.mesh.baseline import at_baseline
from tests.mesh.harness import PATIENT, SPLIT, Answer, Client, client, mesh

MESHES = ("1P1D", "2P1D", "1P2D", "2P2D")
PATHS = ("unified", "prefill", "decode", "split")
AT_ONCE = 24

Done = Callable[[], None]
"""Is told of each turn."""


@dataclass(slots=True)
class Outcome:
    """Of one mesh."""

    name: str
    turns: int = 0
    equal: int = 0
    whole_hits: int = 0
    unstored: int = 0  # blocks of prompts that the store had no room or time for
    hits: Counter[int] = field(default_factory=Counter)  # turns by the blocks of their hits
    paths: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


async def ask(c: Client, model: str, prompt: Tokens, new_tokens: int) -> Answer:
    body: dict[str, Any] = {"model": model, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    return await c.complete(list(prompt), **body)


async def at_once(work: Callable[[Conversation], Awaitable[None]], talks: Sequence[Conversation]) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(talk: Conversation) -> None:
        async with places:
            await work(talk)

    async with asyncio.TaskGroup() as group:
        for talk in talks:
            group.create_task(one(talk))


async def answer_all(c: Client, model: str, talks: Sequence[Conversation], text: ModelText, done: Done) -> None:
    """The unified engine's answers, all turns."""

    async def converse(talk: Conversation) -> None:
        for turn in talk.turns:
            prompt = talk.next_prompt()
            answer = await ask(c, model, prompt, turn.new_tokens)
            if answer.error or answer.finish != "length":
                raise RuntimeError(f"the unified engine did not answer: {answer.error or answer.finish}")
            ids = text.encoder.encode(answer.text, add_special=False).tolist()
            talk.prompts.append(prompt)
            talk.answers.append(answer.text)
            talk.spoken.append((*prompt, *ids))
            done()

    await at_once(converse, talks)


class Replay:
    """The same prompts on another mesh, whose store begins empty."""

    def __init__(self, c: Client, model: str, talks: Sequence[Conversation], outcome: Outcome, done: Done) -> None:
        self._client, self._model, self._talks, self._outcome, self._done = c, model, talks, outcome, done
        self._stored: set[Tokens] = set()

    async def run(self) -> None:
        """A turn of all conversations, then the next one: meanwhile an agent's tool would run, and blocks be stored."""
        for at in range(max(len(talk.turns) for talk in self._talks)):
            wave = [talk for talk in self._talks if at < len(talk.turns)]
            await at_once(partial(self._turn, at), wave)
            await self._look_at_store(wave, at)

    async def _turn(self, at: int, talk: Conversation) -> None:
        prompt, turn = talk.prompts[at], talk.turns[at]
        answer, outcome = await ask(self._client, self._model, prompt, turn.new_tokens), self._outcome
        outcome.turns += 1
        self._done()
        if answer.error or answer.text != talk.answers[at]:
            told = answer.error or f"{answer.text!r}, not {talk.answers[at]!r}"
            outcome.wrong.append(f"turn {at} of {self._talks.index(talk)}, {len(prompt)} prompt tokens: {told}")
            return
        outcome.equal += 1
        assert answer.usage is not None
        hit = answer.usage["prompt_tokens_details"]["cached_tokens"] // BLOCK_TOKENS
        outcome.hits[hit] += 1
        outcome.whole_hits += hit >= len(blocks_of(prompt, len(prompt) - 1) & self._stored)

    async def _look_at_store(self, talks: Sequence[Conversation], at: int) -> None:
        """Waits until nothing is on its way to the store, and sees what is there. Answers' ids are known by text alone,
        which may be cut otherwise than it was made; blocks of prompts that are not there are told."""
        plans = self._client.mesh.plans
        async with SchedulerClient(plans["global_scheduler"].address) as scheduler:
            root = root_key((await scheduler.status()).engines[0].info.kv_layout, "")
        await at_baseline(self._client)
        async with StoreClient(plans["kvstore"].address) as store:
            for talk in talks:
                spoken = talk.spoken[at]
                hit = (await store.lookup(block_keys(root, spoken), timeout_s=20)).hit
                self._outcome.unstored += max(0, len(talk.prompts[at]) // BLOCK_TOKENS - hit)
                self._stored |= blocks_of(spoken, hit * BLOCK_TOKENS)


@asynccontextmanager
async def running(folder: Path, options: MeshOptions, **environ: str) -> AsyncIterator[Client]:
    """A mesh with a store of its own, which is gone afterwards. It is patient: much else may run on the machine."""
    environ = {**PATIENT, **environ}
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with mesh(Path(own), options, **environ) as started, client(started) as c:
            yield c


def unified(model: str) -> MeshOptions:
    """Two alike, so that all cores work; each has a core, as those of the other meshes."""
    return MeshOptions(model=model, engines=2, threads=1, kvstore=False)


def apart(name: str, model: str) -> MeshOptions:
    prefill, decode = (int(count) for count in name.removesuffix("D").split("P"))
    return MeshOptions(model=model, prefill=prefill, decode=decode, threads=1, policy="dualpath_round_robin")


async def compare(
    folder: Path, model: str, talks: Sequence[Conversation], text: ModelText, meshes: Sequence[str], done: Done
) -> AsyncIterator[Outcome]:
    """The unified engine's answers, then each mesh's beside them."""
    async with running(folder, unified(model)) as c:
        await answer_all(c, model, talks, text, done)
    for name in meshes:
        begun, outcome = time.monotonic(), Outcome(name)
        async with running(folder, apart(name, model), **SPLIT) as c:
            await Replay(c, model, talks, outcome, done).run()
            async with SchedulerClient(c.mesh.plans["global_scheduler"].address) as scheduler:
                choices = (await scheduler.status()).path_choices
        outcome.paths = {path: count for path, count in zip(PATHS, choices, strict=True) if count}
        outcome.seconds = time.monotonic() - begun
        yield outcome


@contextmanager
def bar(turns: int) -> Iterator[Done]:
    columns = (TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as progress:
        task = progress.add_task("", total=turns)
        yield lambda: progress.advance(task)


def show(one: Outcome) -> None:
    """A row, and what was wrong below it."""
    hits = ", ".join(f"{blocks}: {count}" for blocks, count in sorted(one.hits.items()))
    paths = ", ".join(f"{path} {count}" for path, count in one.paths.items())
    counts = f"{one.turns:>6}{one.equal:>7}{one.whole_hits:>12}{one.unstored:>12}"
    print(f"{one.name:<6}{counts}   {hits:<36}{paths:<48}{one.seconds:>6.0f}")
    print("".join(f"  {line}\n" for line in one.wrong), end="", flush=True)


async def measure(options: argparse.Namespace, talks: Sequence[Conversation], text: ModelText, done: Done) -> bool:
    """Shows each mesh's outcome once it is there. Whether all was equal."""
    found: dict[str, Any] = {"machine": machine(), "conversations": len(talks), "outcomes": []}
    columns = f"{'turns':>6}{'equal':>7}{'hits whole':>12}{'not stored':>12}"
    print(f"{'mesh':<6}{columns}   {'hits by blocks':<36}{'read by':<48}{'s':>6}", flush=True)
    with tempfile.TemporaryDirectory(prefix="conversations.") as folder:
        async for one in compare(Path(folder), options.model, talks, text, options.meshes, done):
            show(one)
            found["outcomes"].append({name: getattr(one, name) for name in Outcome.__slots__})
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    return all(one["equal"] == one["turns"] for one in found["outcomes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--meshes", nargs="+", default=MESHES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    text = load(models_dir() / options.model)
    talks = conversations(options.conversations, text)
    with bar(sum(len(talk.turns) for talk in talks) * (1 + len(options.meshes))) as done:
        return int(not asyncio.run(measure(options, talks, text, done)))


if __name__ == "__main__":
    sys.exit(main())
