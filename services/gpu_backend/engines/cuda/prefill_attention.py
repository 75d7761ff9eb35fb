"""Paged attention of a prefill step: any number of new tokens of any number of sequences.

(Those of one token each at the end of the step may be attend_decode's, which cuts their contexts.)

A program takes one KV head and TOKENS new tokens of one sequence: its tile has a row for each of their
query heads. Which tokens, it works out from the step's sequences.
"""

import triton
import triton.language as tl

from services.gpu_backend.engines.cuda.step_kernels import (
    LANE,
    PAGE,
    POSITION,
    SEQUENCE_WORDS,
    TOKEN_BEGIN,
    TOKEN_COUNT,
)


@triton.jit
def _attend_pages(
    begin, end, query, own, last, table, head_pool, page_stride, scale, highest, weight, found,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Pages [begin, end) of the context, on top of what was found. WHOLE: every row sees all of each page."""
    dtype = query.dtype
    inside = tl.arange(0, PAGE)
    columns = tl.arange(0, DIM)
    for number in tl.range(begin, end, num_stages=STAGES):
        page = tl.load(table + number).to(tl.int64)
        at = head_pool + page * page_stride
        keys = at + inside[None, :] * (KV_HEADS * DIM) + columns[:, None]
        values = at + (PAGE + inside[:, None]) * (KV_HEADS * DIM) + columns[None, :]
        if WHOLE:
            scores = tl.dot(query, tl.load(keys), input_precision=PRECISION) * scale
        else:
            places = number * PAGE + inside
            scores = tl.dot(query, tl.load(keys, places[None, :] <= last, 0.0), input_precision=PRECISION) * scale
            scores = tl.where(places[None, :] <= own[:, None], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        faded = tl.exp2(highest - new_highest)
        weight = weight * faded + tl.sum(weights, 1)
        found = found * faded[:, None]
        if WHOLE:
            found += tl.dot(weights.to(dtype), tl.load(values), input_precision=PRECISION)
        else:
            known = number * PAGE + inside <= last
            found += tl.dot(weights.to(dtype), tl.load(values, known[:, None], 0.0), input_precision=PRECISION)
        highest = new_highest
    return highest, weight, found


@triton.jit
def attend_prefill(
    qkv, sequences, sequence_count, first_single, block_tables, pool, out,
    lane_pages, page_stride, sequences_most, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr,
    SEQUENCES: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, SINGLES_APART: tl.constexpr,
):  # fmt: skip
    """Grid: (kv_heads, tiles); tiles: enough for every sequence's last, part-filled one.

    Queries are turned, K and V of the new tokens are in their pages. GROUP: a power of two that holds the
    query heads of a KV head. Rows of padding are not written. The last tiles have the longest contexts, so they
    go first.
    """
    kv_head, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    every = tl.arange(0, SEQUENCES)
    seats = every < tl.minimum(tl.load(sequence_count), sequences_most)
    counts = tl.load(sequences + every * SEQUENCE_WORDS + TOKEN_COUNT, seats, 0)
    if SINGLES_APART:
        begins = tl.load(sequences + every * SEQUENCE_WORDS + TOKEN_BEGIN, seats, 0)
        counts = tl.where(begins < tl.load(first_single), counts, 0)
    tiles = (counts + TOKENS - 1) // TOKENS
    ends = tl.cumsum(tiles, 0)
    sequence = tl.sum((ends <= tile).to(tl.int32))
    if sequence >= SEQUENCES:
        return
    first = (tile - tl.sum(tl.where(every < sequence, tiles, 0))) * TOKENS
    at = sequences + sequence * SEQUENCE_WORDS
    count = tl.load(at + TOKEN_COUNT)
    begin = tl.load(at + TOKEN_BEGIN)
    position = tl.load(at + POSITION)
    table = block_tables + tl.load(at + LANE).to(tl.int64) * lane_pages

    SHARED: tl.constexpr = HEADS // KV_HEADS
    rows = tl.arange(0, TOKENS * GROUP)
    token, shared = first + rows // GROUP, rows % GROUP
    live = (token < count) & (shared < SHARED)
    columns = tl.arange(0, DIM)
    head = kv_head * SHARED + shared
    row = (begin + token).to(tl.int64)
    width = (HEADS + 2 * KV_HEADS) * DIM
    query = tl.load(qkv + row[:, None] * width + head[:, None] * DIM + columns[None, :], live[:, None], 0.0)
    own = position + token

    highest = tl.full([TOKENS * GROUP], float("-inf"), tl.float32)
    weight = tl.zeros([TOKENS * GROUP], tl.float32)
    found = tl.zeros([TOKENS * GROUP, DIM], tl.float32)
    last = position + tl.minimum(first + TOKENS, count) - 1  # the tile's last position
    whole = (position + first + 1) // PAGE  # pages that every row of the tile sees all of
    head_pool = pool + kv_head * DIM
    highest, weight, found = _attend_pages(
        0, whole, query, own, last, table, head_pool, page_stride, scale, highest, weight, found,
        KV_HEADS, DIM, True, PRECISION, STAGES,
    )  # fmt: skip
    highest, weight, found = _attend_pages(
        whole, last // PAGE + 1, query, own, last, table, head_pool, page_stride, scale, highest, weight, found,
        KV_HEADS, DIM, False, PRECISION, STAGES,
    )  # fmt: skip
    found = found / weight[:, None]
    place = out + (row[:, None] * HEADS + head[:, None]) * DIM + columns[None, :]
    tl.store(place, found.to(qkv.dtype.element_ty), live[:, None])
