"""Agents at work while services are killed and restarted at random: what ends how, and what is left behind.

First a single engine answers all turns of some hundred conversations, undisturbed. Then agents replay them on a mesh of
prefill and decode engines, and some leave in the middle of an answer, while all the time a service is killed (SIGKILL)
and, a moment later, started again; a few are frozen (SIGSTOP) instead, longer than their lease. A request may end

- whole: with the tokens of the single engine;
- with an error, as an event or a status of 500 and above: what came before it is the right answer's beginning;
- cut, where the gateway was killed while the request ran, and only there.

Anything else is a fault: other tokens, an end without a reason, no end within two minutes. Other tokens that are a tie
of the model's (agents/ties.py computes that) are counted, and told with their margins. At the end all services run;
slots, pages, buffers, leases and tickets must be free again, every stored block whole, and every answer right.

    python -m bench.chaos [--minutes 10] [--mesh 2P2D] [--agents 8] [--freezes 0.1] [--seed 0] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.agents.parties import Agent, Executioner, Tally
from bench.agents.ties import Judge
from bench.agents.turns import Conversation, conversations
from bench.common.machine import machine
from bench.conversations import answer_all, apart, ask, running, unified
from services.kvstore.client import StoreClient
from services.tokenizer.model_text import ModelText, load
from tests.mesh.baseline import BASELINE_S, at_baseline, engines, value
from tests.mesh.harness import SHORT_LEASES, SPLIT, Client
from tests.mesh.tiny_model import NAME, make_tiny_model, tiny_model

NEW_TOKENS = (8, 40, 100)
LAST_ROUND = 12  # conversations


async def disturb(c: Client, talks: Sequence[Conversation], options: argparse.Namespace, tally: Tally) -> None:
    """Agents and the executioner, for the time that was asked for."""
    over, all_over, begun = asyncio.Event(), asyncio.Event(), time.monotonic()
    killer = Executioner(c, tally, options.freezes, random.Random(options.seed))
    with bar(60 * options.minutes, tally) as show:
        async with asyncio.TaskGroup() as group:
            for number in range(options.agents):
                agent = Agent(c, talks, tally, killer, random.Random(f"{options.seed}/{number}"))
                group.create_task(agent.run(all_over))
            killing = group.create_task(killer.run(over))
            while not killing.done() and (spent := time.monotonic() - begun) < 60 * options.minutes:
                show(spent)
                await asyncio.sleep(1)
            over.set()
            await asyncio.wait((killing,))  # all services run again
            all_over.set()
    tally.seconds = time.monotonic() - begun


async def aftermath(c: Client, talks: Sequence[Conversation], tally: Tally) -> None:
    """What must hold once nobody is killed any more. Raises AssertionError."""

    async def attached_once() -> bool:
        return all([await value(c, name, "front_end_leases") == 1 for name in engines(c)])

    await c.until("dead front ends have lost their places", attached_once, BASELINE_S)
    await at_baseline(c)
    async with StoreClient(c.mesh.plans["kvstore"].address) as store:
        async for reply in store.verify():
            tally.blocks += reply.checked
            tally.faults += [f"a stored block is broken: {key.hex()}" for key in reply.broken]
    for talk in talks[:LAST_ROUND]:
        for at, (prompt, turn) in enumerate(zip(talk.prompts, talk.turns, strict=True)):
            answer = await ask(c, NAME, prompt, turn.new_tokens)
            if answer.error or answer.finish != "length":
                tally.fault(f"afterwards: {answer}")
            tally.compare(talk, at, answer)
    await at_baseline(c)


def look_at_others(tally: Tally, text: ModelText) -> None:
    """Answers of other tokens are ties, or faults."""
    model = tiny_model()
    judge = Judge(model, text.token_text(model.config.vocab_size))
    for suspect in tally.suspects:
        verdict = judge.judge(suspect)
        if verdict.tie:
            tally.ties[verdict.told] += 1
        else:
            tally.fault(f"other tokens: {verdict.told}")
    tally.suspects.clear()


async def chaos(folder: Path, options: argparse.Namespace) -> Tally:
    """HOSTLESS_MODELS must be the folder's `models`."""
    models = folder / "models"
    make_tiny_model(models)
    text = load(models / NAME)
    talks, tally = conversations(options.conversations, text, NEW_TOKENS), Tally()
    async with running(folder, unified(NAME)) as c:
        await answer_all(c, NAME, talks, text, lambda: None)
    held = {"HOSTLESS_GPU_BACKEND_HELD_BYTES": options.held_bytes}
    async with running(folder, apart(options.mesh, NAME), **SHORT_LEASES, **SPLIT, **held) as c:
        try:
            await disturb(c, talks, options, tally)
            await aftermath(c, talks, tally)
        except AssertionError as error:
            tally.fault(str(error))
        look_at_others(tally, text)
        if options.logs:
            keep_logs(c, options.logs)
    return tally


def keep_logs(c: Client, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in c.mesh.plans:
        (folder / f"{name}.log").write_text(c.mesh.log(name))


@contextmanager
def bar(seconds: float, tally: Tally) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as progress:
        task = progress.add_task("", total=seconds)

        def show(spent: float) -> None:
            told = ", ".join(f"{end} {count}" for end, count in tally.ends.most_common())
            progress.update(task, completed=spent, description=f"{tally.kills.total()} kills; {told}")

        yield show


def report(tally: Tally) -> None:
    def told(counts: Counter[str]) -> str:
        return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"

    print(f"{tally.seconds:.0f} s; killed: {told(tally.kills)}; frozen: {told(tally.freezes)}")
    print(f"{tally.ends.total()} requests: {told(tally.ends)}; {tally.blocks} stored blocks, whole")
    for kind, count in tally.errors.most_common():
        print(f"  {count:>5}  {kind}")
    for tie, count in tally.ties.most_common():
        print(f"  {count:>5}  a tie: {tie}")
    print("\n".join(["faults:", *tally.faults]) if tally.faults else "no fault")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--mesh", default="2P2D", help="prefill and decode engines, such as 1P2D")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--conversations", type=int, default=160)
    parser.add_argument("--freezes", type=float, default=0.1, help="share of the disturbances that freeze a service")
    parser.add_argument("--held-bytes", default="0", help="of each engine, for blocks that come back soon; 16MiB, say")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when; what follows differs all the same")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for the services' logs")
    return parser.parse_args(argv)


def main() -> int:
    options, before = arguments(), machine()
    with tempfile.TemporaryDirectory(prefix="chaos.") as folder:
        os.environ["HOSTLESS_MODELS"] = str(Path(folder) / "models")
        tally = asyncio.run(chaos(Path(folder), options))
    report(tally)
    if options.json:
        given = {name: value for name, value in vars(options).items() if name not in ("json", "logs")}
        found = {field.name: getattr(tally, field.name) for field in fields(tally)}
        options.json.write_text(json.dumps({"machine": before, "options": given, **found}, indent=1) + "\n")
    return int(bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main())
