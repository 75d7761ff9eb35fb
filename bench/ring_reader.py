"""What a front end's ring costs: submission a request, reading a token, a poll that finds nothing (B12-B14).

python -m bench.ring_reader [--streams 256]

The engine's side is played here by writing slot words between the timed polls.
"""

import argparse
import time

import numpy as np

from services.fabric import _ring
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingClient, RingGeometry, RingOwner, SlotState
from services.fabric.ring.layout import unpack
from services.fabric.transports import open_region
from services.tokenizer.reader import TokenReader
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import RingRequest, Submitter

GEOMETRY = RingGeometry(slots=4096, prompt_words=1 << 20, token_words=1 << 22)
POLLS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256, help="at most 512, the slots of one front end")
    streams = parser.parse_args().streams
    with MemoryRegion.create("bench-ring-reader", GEOMETRY.size_bytes) as region:
        owner = RingOwner(region, GEOMETRY, epoch=1, max_context=2048, vocab_size=1000, page_count=1)
        owner.grant(owner.share(0))
        ring = RingClient(open_region(region.descriptor()), owner.share(0))
        submitter = Submitter(ring, SlotTracker(0, ring.read_words()))
        reader = TokenReader(ring, submitter.release, tokens_per_poll=1 << 20)
        prompt = np.zeros(100, np.uint32)
        start = time.perf_counter()
        handles = submitter.submit([RingRequest(prompt, 1024)] * streams, 0)
        print(f"submission  {1e6 * (time.perf_counter() - start) / streams:6.2f} us a request of 100 tokens")
        reader.add(handles)
        for tokens in (1, 4):
            print(f"{tokens} new tokens {read(owner, ring, reader, tokens):5.2f} us a token, {streams} streams")
        start = time.perf_counter()
        for _ in range(1000):
            reader.poll()
        print(f"empty poll  {1e3 * (time.perf_counter() - start):6.2f} us")


def read(owner: RingOwner, ring: RingClient, reader: TokenReader, tokens: int) -> float:
    """Microseconds a token when every stream has `tokens` new ones a poll."""
    words_at = GEOMETRY.fields()["words_offset"]
    spent, count = 0.0, 0
    for _ in range(POLLS):
        slots = unpack(ring.read_words())
        for slot in np.flatnonzero(slots.states).tolist():
            generation, known = int(slots.generations[slot]), int(slots.tokens[slot])
            word = _ring.slot_word(SlotState.DECODE_PROCESSING, Finish.NONE, generation, known + tokens)
            _ring.store_release_u64(owner.buffer, words_at + 8 * slot, word)
        start = time.perf_counter()
        progress = reader.poll().progress
        spent += time.perf_counter() - start
        count += sum(len(news.tokens) for news in progress)
    return 1e6 * spent / count


if __name__ == "__main__":
    main()
