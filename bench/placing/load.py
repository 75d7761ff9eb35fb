"""The load that placements are measured under: engines, what is on them, requests of agents."""

import random
from collections import deque
from collections.abc import Iterator

from services.global_scheduler.policy.state import Engine, Load, Placement, Request, Role

RATE = 10_000 / 1152  # placements a second and engine
REPORT_S = 0.1
READ_S, PREFILL_S, DECODE_S = 0.1, 0.2, 3.0
PAGES = 40_000


class Ledger:
    """What an engine would report: its requests, and its reads, each until its end."""

    def __init__(self) -> None:
        self._requests: deque[tuple[float, int]] = deque()
        self._reads: deque[tuple[float, int]] = deque()
        self._tokens = self._reading = 0

    def take(self, now: float, stay_s: float, tokens: int, read: int) -> None:
        self._requests.append((now + stay_s, tokens))
        self._reads.append((now + READ_S, read))
        self._tokens += tokens
        self._reading += read

    def report(self, now: float) -> Load:
        while self._requests and self._requests[0][0] <= now:
            self._tokens -= self._requests.popleft()[1]
        while self._reads and self._reads[0][0] <= now:
            self._reading -= self._reads.popleft()[1]
        return Load(len(self._requests), self._tokens, self._reading, PAGES - -(-self._tokens // 64))


def take(ledgers: dict[str, Ledger], placement: Placement, prompt: int, now: float) -> None:
    ledgers[placement.prefill].take(now, PREFILL_S, prompt, placement.prefill_read_tokens)
    ledgers[placement.decode].take(now, DECODE_S, prompt, placement.decode_read_tokens)


def engines(count: int) -> list[Engine]:
    """8 a node; a third of the nodes, or of the engines if there are fewer than 24, for prefill."""
    made = []
    for index in range(count):
        node = f"node{index // 8:05}"
        role = Role.PREFILL if (index // 8 if count >= 24 else index) % 3 == 0 else Role.DECODE
        made.append(Engine(f"engine{index:05}", node, node, role, "model", 64, PAGES, 131_072))
    return made


def requests(seed: int = 1) -> Iterator[Request]:
    draw = random.Random(seed)
    number = 0
    while True:
        number += 1
        prompt = draw.randrange(16_384, 49_152)
        yield Request(str(number), "model", prompt, int(prompt * 0.987) // 64 * 64, 512)
