"""The parties of bench/chaos.py: agents that ask, an executioner that kills, and the tally of how requests ended."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.agents.ties import Suspect
from bench.agents.turns import Conversation
from bench.conversations import ask
from tests.mesh.harness import Answer, Client
from tests.mesh.tiny_model import NAME

REQUEST_S = 115.0
LEAVES = 0.1  # of the requests
PAUSE_S = 0.5  # after an error
WEIGHTS = {"prefill": 3, "decode": 3, "kvstore": 3, "tokenizer": 3, "global_scheduler": 1, "gateway": 1}


@dataclass(slots=True)
class Tally:
    """`ends` counts requests by how they ended; `faults` must stay empty. `suspects` said other tokens: a tie, or a
    fault."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    freezes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)
    ties: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    blocks: int = 0  # in the store at the end, all verified

    def fault(self, what: str) -> None:
        self.ends["fault"] += 1
        self.faults.append(f"{time.strftime('%H:%M:%S')} {what}")

    def compare(self, talk: Conversation, at: int, answer: Answer) -> None:
        """The text of an answer, however it ended, with the right one."""
        right, whole = talk.answers[at], answer.finish == "length"
        if answer.text != right if whole else not right.startswith(answer.text):
            where, new = f"{time.strftime('%H:%M:%S')} turn {at}", talk.turns[at].new_tokens
            self.suspects.append(Suspect(talk.prompts[at], new, answer.text, right, whole, where))


class Executioner:
    """Kills or freezes one service at a time, or lets it live again."""

    def __init__(self, c: Client, tally: Tally, freezes: float, chance: random.Random) -> None:
        self._mesh, self._tally, self._freezes, self._chance = c.mesh, tally, freezes, chance
        self._gateway_back_at = float("-inf")

    def gateway_down_since(self, begun: float) -> bool:
        """Whether it was dead at some time from then on: a client's connections end when it is killed, or when they are
        used the next time."""
        return self._gateway_back_at >= begun

    async def run(self, over: asyncio.Event) -> None:
        """Until it is over, or a service doesn't start any more."""
        names = list(self._mesh.plans)
        weights = [WEIGHTS[name.split("-")[0]] for name in names]
        while not await until(over, self._chance.uniform(0.5, 5)):
            [name] = self._chance.choices(names, weights)
            try:
                await (self._freeze(name) if self._chance.random() < self._freezes else self._kill(name))
            except (AssertionError, TimeoutError) as error:
                self._tally.fault(f"{name} does not come back: {error}")
                return

    async def _kill(self, name: str) -> None:
        self._tally.kills[name] += 1
        if name == "gateway":
            self._gateway_back_at = float("inf")
        await self._mesh.kill(name)
        await asyncio.sleep(self._chance.uniform(0, 2))
        await self._mesh.restart(name)
        if name == "gateway":
            self._gateway_back_at = time.monotonic()

    async def _freeze(self, name: str) -> None:
        self._tally.freezes[name] += 1
        self._mesh.signal(name, signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.5, 4))
        self._mesh.signal(name, signal.SIGCONT)


class Agent:
    """Replays conversations, one after the other, that all agents share."""

    def __init__(
        self, c: Client, talks: Sequence[Conversation], tally: Tally, killer: Executioner, chance: random.Random
    ) -> None:
        self._client, self._talks, self._tally, self._killer, self._chance = c, talks, tally, killer, chance

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            talk = self._chance.choice(self._talks)
            for at in range(len(talk.turns)):
                leaves_after_s = self._chance.uniform(0, 0.5) if self._chance.random() < LEAVES else REQUEST_S
                if over.is_set() or not await self._turn(talk, at, leaves_after_s):
                    break

    async def _turn(self, talk: Conversation, at: int, leaves_after_s: float) -> bool:
        """Whether it was answered."""
        begun, tally = time.monotonic(), self._tally
        asked = asyncio.ensure_future(ask(self._client, NAME, talk.prompts[at], talk.turns[at].new_tokens))
        await asyncio.wait((asked,), timeout=leaves_after_s)
        if not asked.done():
            asked.cancel()
            await asyncio.wait((asked,))
            if leaves_after_s < REQUEST_S:
                tally.ends["left"] += 1
            else:
                tally.fault(f"no end within {REQUEST_S:g} s: {len(talk.prompts[at])} prompt tokens")
            return False
        try:
            answer = asked.result()
        except aiohttp.ClientConnectorError:
            tally.ends["no gateway"] += 1
            await asyncio.sleep(PAUSE_S)
            return False
        except (aiohttp.ClientError, TimeoutError) as error:
            if self._killer.gateway_down_since(begun):
                tally.ends["cut"] += 1
            else:
                tally.fault(f"cut, and the gateway lived: {error!r}")
            return False
        return await self._ended(talk, at, answer, begun)

    async def _ended(self, talk: Conversation, at: int, answer: Answer, begun: float) -> bool:
        tally = self._tally
        tally.compare(talk, at, answer)
        if answer.finish == "length" and not answer.error:
            tally.ends["whole"] += 1
            return True
        if answer.error is None and answer.finish is None and self._killer.gateway_down_since(begun):
            tally.ends["cut"] += 1
        elif wrong := what_is_wrong(answer):
            tally.fault(f"{wrong}: {len(talk.prompts[at])} prompt tokens, {answer}, right: {talk.answers[at]!r}")
        else:
            assert answer.error is not None
            tally.ends["error"] += 1
            tally.errors[kind_of(answer.error)] += 1
            await asyncio.sleep(PAUSE_S)
        return False


def what_is_wrong(answer: Answer) -> str:
    """With an end that is not the right one; empty if it is an error as it should be."""
    if answer.error is None:
        return "no reason for its end" if answer.finish is None else f"ended early with {answer.finish}"
    if answer.error.get("code") == "internal_error":
        return "something that a service did not expect"
    return f"blamed on the client: status {answer.status}" if 400 <= answer.status < 500 else ""


def kind_of(error: dict[str, Any]) -> str:
    """Errors that differ by an engine's name or a number are one kind."""
    words = [word for word in str(error.get("message")).split() if not any(c.isdigit() for c in word)]
    return f"{error.get('code')}: {' '.join(words)[:100]}"


async def until(over: asyncio.Event, seconds: float) -> bool:
    """Whether it is over; waits so long to see."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()
    return over.is_set()
