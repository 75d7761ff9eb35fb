"""A front end in a process of its own: no CUDA, nothing but the ring as plain shared memory.

    python -m tests.gpu.scheduler.front_end '{"path": ..., "front_end": 0, "requests": 500, "seed": 1, ...}'

It submits, cancels now and then, reads what comes, compares every token, and prints what happened as JSON.
With `garbage` it writes anything anywhere in its own share instead, for so many seconds.
"""

import json
import mmap
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import Finish, SlotState
from services.fabric.region_file import PAGE_BYTES
from services.fabric.ring.layout import HEADER, RECORD, REPORT, Share
from tests.gpu.scheduler.reference import VOCABULARY, expected_tokens, prompt_tokens

DEADLINE_S = 100.0


@dataclass
class Request:
    generation: int
    expected: list[int]
    spoilt: bool
    seen: int = 0
    cancelled: bool = False


@dataclass
class Summary:
    tokens: int = 0
    requests: int = 0
    preemptions: int = 0
    chunks: int = 0
    finishes: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class FrontEnd:
    def __init__(self, path: str, share: Share, seed: int, most_prompt: int, most_tokens: int) -> None:
        with open(path, "r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size)
        memory = np.frombuffer(self._mapping, np.uint8, offset=PAGE_BYTES)
        self.header: Any = memory[: HEADER.itemsize].view(HEADER)[0]
        h, self.share = self.header, share
        slots = int(h["slot_count"])

        def view(name: str, count: int, dtype: Any) -> NDArray[Any]:
            begin = int(h[name])
            return memory[begin : begin + count * np.dtype(dtype).itemsize].view(dtype)

        self.words = view("words_offset", slots, np.uint64)
        self.cancels = view("cancels_offset", slots, np.uint32)
        self.records = view("records_offset", slots, RECORD)
        self.reports = view("reports_offset", slots, REPORT)
        self.prompt = view("prompt_offset", int(h["prompt_words"]), np.uint32)
        self.token = view("token_offset", int(h["token_words"]), np.uint32)
        self.random = random.Random(seed)
        self.most_prompt, self.most_tokens = most_prompt, most_tokens
        self.rows = min(share.slot_count, share.prompt_count // most_prompt, share.token_count // most_tokens)
        self.live: dict[int, Request] = {}
        self.summary = Summary()

    def run(self, requests: int, cancel_one_in: int, spoil_one_in: int) -> Summary:
        begin, left = time.monotonic(), requests
        while left or self.live:
            if time.monotonic() - begin > DEADLINE_S:
                self.summary.wrong.append(f"not finished in {DEADLINE_S:g} s: {len(self.live)} live, {left} to submit")
                break
            free = [i for i in range(self.rows) if i not in self.live][: min(left, 1 + self.random.randrange(8))]
            for i in free:
                self.submit(i, self.random.randrange(spoil_one_in) == 0 if spoil_one_in else False)
            if free:
                self.header["doorbells"][self.share.front_end] += len(free)
            left -= len(free)
            words = self.words[self.share.slot_begin : self.share.slot_begin + self.rows].tolist()
            for i in list(self.live):
                self.look(i, words[i])
                if i in self.live and cancel_one_in and self.random.randrange(cancel_one_in) == 0:
                    self.live[i].cancelled = True
                    self.cancels[self.share.slot_begin + i] = self.live[i].generation
        self.summary.seconds = time.monotonic() - begin
        return self.summary

    def submit(self, i: int, spoilt: bool) -> None:
        slot, share, seed = self.share.slot_begin + i, self.share, self.random.randrange(1 << 32)
        prompt = prompt_tokens(seed, 1 + self.random.randrange(self.most_prompt))
        most, stop_id = 1 + self.random.randrange(self.most_tokens), self.random.randrange(VOCABULARY)
        generation = _ring.next_generation(int(self.words[slot]) >> 8 & 0xFFFFFF)
        record = np.zeros((), RECORD)
        self._sequence = getattr(self, "_sequence", int(self.header["doorbells"][share.front_end])) + 1
        record["generation"], record["sequence"] = generation, self._sequence & 0xFFFFFFFF
        record["prompt_begin"], record["prompt_count"] = share.prompt_begin + i * self.most_prompt, len(prompt)
        record["token_begin"], record["max_tokens"] = share.token_begin + i * self.most_tokens, most
        record["top_p"], record["seed"], record["temperature"] = 1, seed, 1
        record["stop_ids"][0], record["stop_count"] = stop_id, 1
        self.prompt[int(record["prompt_begin"]) :][: len(prompt)] = prompt
        if spoilt:
            self.spoil(record)
        self.records[slot] = record
        expected = expected_tokens(seed, prompt, most, stop_id)
        self.live[i] = Request(generation, expected, spoilt)
        self.words[slot] = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)

    def spoil(self, record: Any) -> None:
        """One field is made wrong. Ranges that begin low would be another's, and race with that one."""
        name = self.random.choice([n for n in RECORD.names or () if n not in ("prompt_begin", "token_begin", "seed")])
        worst = [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0, 63]
        if name in ("temperature", "top_p"):
            record[name] = self.random.choice([float("nan"), float("inf"), -1.0])
        elif record[name].ndim:
            record[name][:] = self.random.choice([0, 255])
        else:
            record[name] = self.random.choice(worst)

    def look(self, i: int, word: int) -> None:
        request, slot, summary = self.live[i], self.share.slot_begin + i, self.summary
        state, finish, generation, count = _ring.unpack_word(word)
        if generation != request.generation:
            summary.wrong.append(f"slot {slot}: generation {generation}, not {request.generation}")
        if not request.spoilt and count != request.seen:
            begin = self.share.token_begin + i * self.most_tokens
            got, wanted = self.token[begin : begin + count].tolist(), request.expected[:count]
            if got != wanted:
                summary.wrong.append(f"slot {slot}: tokens {got[-4:]} instead of {wanted[-4:]} at {count}")
            summary.tokens += count - request.seen
            request.seen = count
        if state != SlotState.DECODE_COMPLETED:
            return
        report = self.reports[slot]
        if int(report["generation"]) != generation:
            summary.wrong.append(f"slot {slot}: another request's report")
        fates = {Finish.STOP, Finish.LENGTH} | ({Finish.CANCELLED} if request.cancelled else set())
        if not request.spoilt and finish not in fates:
            summary.wrong.append(f"slot {slot}: finished with {finish}")
        if not request.spoilt and finish in (Finish.STOP, Finish.LENGTH) and count != len(request.expected):
            summary.wrong.append(f"slot {slot}: {count} tokens instead of {len(request.expected)}")
        summary.finishes[finish.name] = summary.finishes.get(finish.name, 0) + 1
        summary.requests += 1
        summary.preemptions += int(report["preemptions"])
        summary.chunks += int(report["prefill_chunks"])
        del self.live[i]
        self.words[slot] = _ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0)

    def garbage(self, seconds: float) -> Summary:
        """Anything, anywhere in the share, as fast as it goes."""
        share, r, end = self.share, self.random, time.monotonic() + seconds
        slots = range(share.slot_begin, share.slot_begin + share.slot_count)
        while time.monotonic() < end:
            slot = r.choice(slots)
            match r.randrange(6):
                case 0:
                    self.records[slot : slot + 1].view(np.uint32)[r.randrange(32)] = r.getrandbits(32)
                case 1:
                    self.words[slot] = r.getrandbits(64)
                case 2:
                    self.cancels[slot] = r.getrandbits(24)
                case 3:
                    self.header["doorbells"][share.front_end] += r.randrange(3)
                case 4:
                    self.prompt[share.prompt_begin + r.randrange(share.prompt_count)] = r.getrandbits(32)
                case 5:  # one that nearly holds
                    i = slot - share.slot_begin
                    if i < self.rows:
                        self.submit(i, r.random() < 0.7)
                        self.live.clear()
            self.summary.requests += 1
        return self.summary


def main() -> None:
    given = json.loads(sys.argv[1])
    front_end = FrontEnd(
        given["path"], Share(**given["share"]), given["seed"], given["most_prompt"], given["most_tokens"]
    )
    if "garbage" in given:
        summary = front_end.garbage(given["garbage"])
    else:
        summary = front_end.run(given["requests"], given.get("cancel_one_in", 0), given.get("spoil_one_in", 0))
    print(json.dumps(summary.__dict__))


if __name__ == "__main__":
    main()
