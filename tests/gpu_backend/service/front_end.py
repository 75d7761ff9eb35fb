"""A front end in few lines, for tests: attaches to an engine, submits through the ring, reads what comes."""

from typing import Self

import numpy as np

from hostless.v1 import engine_pb2
from services.fabric import _ring
from services.fabric.ring import Finish, RingClient, SlotState
from services.fabric.ring.layout import RECORD, unpack
from services.fabric.transports import open_region
from services.gpu_backend.client import EngineClient
from services.tokenizer.attachment import share_of
from tests.waiting import until

WAIT_S = 30.0


class FrontEnd:
    """Uses slot n of its share for its n-th request; holds as many requests as its share has slots."""

    def __init__(self, lease: engine_pb2.RingLease) -> None:
        self.lease = lease
        self.region = open_region(lease.ring)
        self.ring = RingClient(self.region, share_of(lease))
        self._requests: list[int] = []  # max_tokens of each

    @classmethod
    async def attach(cls, engine: EngineClient, name: str = "test") -> Self:
        return cls(await engine.attach(name))

    def submit(
        self, prompt: list[int], max_tokens: int, kv_root: bytes = bytes(16), cached: int = 0, kv_reads: int = 0
    ) -> int:
        """Returns the request's number. With `kv_root` its blocks are stored; `cached` tokens are to be loaded."""
        number, share = len(self._requests), self.ring.share
        slots = np.array([share.slot_begin + number], np.uint64)
        word = int(self.ring.read_words()[number])
        generation = unpack(np.array([word], np.uint64)).generations[0]
        record = np.zeros(1, RECORD)
        record["generation"], record["sequence"] = generation, self.ring.submitted + 1
        record["prompt_begin"] = share.prompt_begin + number * (share.prompt_count // share.slot_count)
        record["prompt_count"], record["max_tokens"], record["top_p"] = len(prompt), max_tokens, 1.0
        record["token_begin"] = self._token_begin(number)
        record["kv_root"][0] = np.frombuffer(kv_root, np.uint8)
        record["cached_tokens"], record["kv_reads"] = cached, kv_reads
        counts = np.array([len(prompt)], np.uint64)
        self.ring.write_prompts(record["prompt_begin"].astype(np.uint64), counts, np.array(prompt, np.uint32))
        self.ring.write_records(slots, record)
        pending = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, int(generation), 0)
        assert self.ring.publish(slots, np.array([word], np.uint64), np.array([pending], np.uint64)).all()
        self._requests.append(max_tokens)
        return number

    def look(self, number: int) -> tuple[SlotState, Finish, int]:
        """State, finish and tokens so far."""
        slots = unpack(self.ring.read_words()[number : number + 1])
        return SlotState(int(slots.states[0])), Finish(int(slots.finishes[0])), int(slots.tokens[0])

    def tokens(self, number: int) -> list[int]:
        begin, count = np.array([self._token_begin(number)], np.uint64), np.array([self.look(number)[2]], np.uint64)
        return self.ring.read_tokens(begin, count).tolist()

    def cached(self, number: int) -> int:
        """Prompt tokens of a finished request that were loaded."""
        return int(
            self.ring.read_reports(np.array([self.ring.share.slot_begin + number], np.uint64))["cached_tokens"][0]
        )

    async def finished(self, number: int) -> Finish:
        await until(lambda: self.look(number)[0] is SlotState.DECODE_COMPLETED)
        return self.look(number)[1]

    def release(self, number: int) -> None:
        words = self.ring.read_words()[number : number + 1]
        generation = int(unpack(words).generations[0])
        empty = _ring.slot_word(SlotState.EMPTY, Finish.NONE, _ring.next_generation(generation), 0)
        slot = np.array([self.ring.share.slot_begin + number], np.uint64)
        assert self.ring.release(slot, words, np.array([empty], np.uint64)).all()

    def _token_begin(self, number: int) -> int:
        share = self.ring.share
        return share.token_begin + number * (share.token_count // share.slot_count)
