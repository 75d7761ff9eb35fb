"""An engine small enough to be obviously right: what it samples shows all that the scheduler told it.

Its KV pages hold tokens. A sampled token is a hash of all tokens before it, read back through the block
table, and of the sequence's random number, so that a wrong page, position, lane or seed is a wrong token.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend._scheduler import uniform
from services.gpu_backend.engine import PAGE_TOKENS, StepView

VOCABULARY = 211


def next_token(tokens: NDArray[np.uint32], draw: float) -> int:
    return zlib.crc32(np.float32(draw).tobytes(), zlib.crc32(tokens.tobytes())) % VOCABULARY


def prompt_tokens(seed: int, count: int) -> NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.uint32)


def expected_tokens(prompt: NDArray[np.uint32], seed: int, most: int, stop_ids: Sequence[int]) -> list[int]:
    """All that a request generates if nothing ends it early; the stop token is the last."""
    tokens, generated = prompt, list[int]()
    while len(generated) < most:
        generated.append(next_token(tokens, uniform(seed, len(generated))))
        if generated[-1] in stop_ids:
            break
        tokens = np.append(tokens, np.uint32(generated[-1]))
    return generated


class ToyEngine:
    def __init__(self, pages: int) -> None:
        self.kv = np.full((pages, PAGE_TOKENS), VOCABULARY, np.uint32)

    def step(self, view: StepView) -> None:
        rows = view.sequences[: view.sequence_count]
        assert not view.sequences["token_count"][view.sequence_count :].any(), "a row of padding has tokens"
        assert rows["token_count"].all(), "a row of nothing"
        assert len(set(rows["lane"].tolist())) == len(rows), "a lane twice in a step"
        assert rows["token_begin"].tolist() == [0, *np.cumsum(rows["token_count"])[:-1].tolist()]
        assert rows["token_count"].sum() == view.token_count <= len(view.tokens)
        for i, row in enumerate(rows):
            begin, count, position = (int(row[name]) for name in ("token_begin", "token_count", "position"))
            places = np.arange(position + count)
            pages = view.block_tables[int(row["lane"]), places // PAGE_TOKENS]
            self.kv[pages[position:], places[position:] % PAGE_TOKENS] = view.tokens[begin : begin + count]
            if row["sample"]:
                view.out_tokens[i] = next_token(self.kv[pages, places % PAGE_TOKENS], float(row["uniform"]))
