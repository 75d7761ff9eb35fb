"""Paged attention of decodes: one new token a sequence, its context cut into splits on the device.

How many programs share a sequence's pages follows from the lengths alone (unpack_decode), so one graph
serves any mix of lengths: the grid has room for `most_splits`, and programs without work leave at once.
The query heads of a KV head are rows of one tile, so the tensor cores see every page once.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from services.gpu_backend.engines.cuda.step_kernels import PAGE


@triton.jit
def _split(position, split_pages, MOST_SPLITS: tl.constexpr):
    """(pages of the context, pages a split, splits) of a sequence; the new token isn't in the pages yet."""
    pages = (position + PAGE - 1) // PAGE
    share = tl.maximum(tl.load(split_pages), (pages + MOST_SPLITS - 1) // MOST_SPLITS)
    return pages, share, tl.maximum((pages + share - 1) // share, 1)


@triton.jit(do_not_specialize=["rows"])
def attend_decode(
    qkv, rotations, positions, lanes, first_single, split_pages, block_tables, pool, out, partials, sums,
    rows, lane_pages, page_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    GROUP: tl.constexpr, MOST_SPLITS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr, BEHIND: tl.constexpr,
):  # fmt: skip
    """Grid: (splits, kv_heads, sequences). Turns query and key, writes K and V of the new token, attends.

    Sequence i is row i; BEHIND: row first_single[0] + i, where there is one, of the `rows` of a prefill step.
    out       [rows, heads, 2 HALF]: written here where a sequence has one split only
    partials  float32[sequences, heads, splits, 2 HALF]: not yet normalised
    sums      float32[sequences, heads, splits, 2]: highest score (base 2) and sum of weights
    """
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = sequence
    if BEHIND:
        row += tl.load(first_single)
    position = tl.load(positions + row, row < rows, -1)
    if position < 0:
        return
    lane = tl.load(lanes + row)
    pages, share, splits = _split(position, split_pages, MOST_SPLITS)
    if split >= splits:
        return
    DIM: tl.constexpr = 2 * HALF
    SHARED: tl.constexpr = HEADS // KV_HEADS
    dtype = qkv.dtype.element_ty
    group = tl.arange(0, GROUP)[:, None]
    pairs = tl.arange(0, HALF)
    columns = tl.arange(0, DIM)
    real = (group < SHARED) & (pairs[None, :] < HALF)
    turn = rotations + position.to(tl.int64) * DIM
    cos, sin = tl.load(turn + pairs), tl.load(turn + HALF + pairs)
    at = qkv + row.to(tl.int64) * (HEADS + 2 * KV_HEADS) * DIM
    query = at + (kv_head * SHARED + group) * DIM + pairs[None, :]
    first = tl.load(query, real, 0.0).to(tl.float32)
    second = tl.load(query + HALF, real, 0.0).to(tl.float32)
    low = (first * cos[None, :] - second * sin[None, :]).to(dtype)
    high = (second * cos[None, :] + first * sin[None, :]).to(dtype)

    highest = tl.full([GROUP], float("-inf"), tl.float32)
    weight = tl.zeros([GROUP], tl.float32)
    found = tl.zeros([GROUP, DIM], tl.float32)
    table = block_tables + lane.to(tl.int64) * lane_pages
    head = pool + kv_head * DIM
    if split == splits - 1:
        key = at + (HEADS + kv_head) * DIM + pairs
        key_first, key_second = tl.load(key).to(tl.float32), tl.load(key + HALF).to(tl.float32)
        key_low = (key_first * cos - key_second * sin).to(dtype)
        key_high = (key_second * cos + key_first * sin).to(dtype)
        value = tl.load(at + (HEADS + KV_HEADS + kv_head) * DIM + columns)
        page = tl.load(table + position // PAGE).to(tl.int64)
        kept = head + page * page_stride + (position % PAGE) * KV_HEADS * DIM
        tl.store(kept + pairs, key_low)
        tl.store(kept + HALF + pairs, key_high)
        tl.store(kept + PAGE * KV_HEADS * DIM + columns, value)
        products = low.to(tl.float32) * key_low.to(tl.float32)[None, :]
        products += high.to(tl.float32) * key_high.to(tl.float32)[None, :]
        highest = tl.sum(products, 1) * scale
        weight = tl.full([GROUP], 1.0, tl.float32)
        found = tl.zeros([GROUP, DIM], tl.float32) + value.to(tl.float32)[None, :]

    tokens = tl.arange(0, PAGE)
    for number in tl.range(split * share, tl.minimum((split + 1) * share, pages), num_stages=STAGES):
        page = tl.load(table + number).to(tl.int64)
        keys = head + page * page_stride + tokens[None, :] * (KV_HEADS * DIM)
        known = number * PAGE + tokens < position
        scores = tl.dot(low, tl.load(keys + pairs[:, None], known[None, :], 0.0), input_precision=PRECISION)
        scores += tl.dot(high, tl.load(keys + HALF + pairs[:, None], known[None, :], 0.0), input_precision=PRECISION)
        scores = tl.where(known[None, :], scores * scale, float("-inf"))
        values = head + page * page_stride + (PAGE + tokens[:, None]) * (KV_HEADS * DIM) + columns[None, :]
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        faded = tl.exp2(highest - new_highest)
        weight = weight * faded + tl.sum(weights, 1)
        found = found * faded[:, None]
        found += tl.dot(weights.to(dtype), tl.load(values, known[:, None], 0.0), input_precision=PRECISION)
        highest = new_highest

    heads = kv_head * SHARED + tl.arange(0, GROUP)
    mine = tl.arange(0, GROUP) < SHARED
    if splits == 1:
        whole = found / weight[:, None]
        seen = out + (row.to(tl.int64) * HEADS + heads[:, None]) * DIM + columns[None, :]
        tl.store(seen, whole.to(dtype), mine[:, None] & (columns[None, :] < DIM))
        return
    place = (sequence.to(tl.int64) * HEADS + heads) * MOST_SPLITS + split
    tl.store(partials + place[:, None] * DIM + columns[None, :], found, mine[:, None] & (columns[None, :] < DIM))
    tl.store(sums + place * 2, highest, mine)
    tl.store(sums + place * 2 + 1, weight, mine)


@triton.jit(do_not_specialize=["rows"])
def combine_splits(
    partials, sums, positions, first_single, split_pages, out, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, MOST_SPLITS: tl.constexpr, SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr, BEHIND: tl.constexpr,
):  # fmt: skip
    """Adds up the splits of attend_decode in `out`; zeros for padding. Grid: (heads, sequences).

    SPLITS: a power of two, at least MOST_SPLITS. BEHIND as there.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    head, sequence = tl.program_id(0), tl.program_id(1)
    row = sequence
    if BEHIND:
        row += tl.load(first_single)
    columns = tl.arange(0, DIM)
    seen = out + (row.to(tl.int64) * HEADS + head) * DIM + columns
    position = tl.load(positions + row, row < rows, -1)
    if position < 0:
        tl.store(seen, tl.zeros([DIM], out.dtype.element_ty), (row < rows) & (columns < DIM))
        return
    place = sequence.to(tl.int64) * HEADS + head
    _, _, splits = _split(position, split_pages, MOST_SPLITS)
    if splits == 1:
        return
    every = tl.arange(0, SPLITS)
    used = every < splits
    highest = tl.load(sums + (place * MOST_SPLITS + every) * 2, used, float("-inf"))
    weight = tl.load(sums + (place * MOST_SPLITS + every) * 2 + 1, used, 0.0)
    parts = tl.load(partials + (place * MOST_SPLITS + every[:, None]) * DIM + columns[None, :], used[:, None], 0.0)
    factor = tl.exp2(highest - tl.max(highest, 0))
    found = tl.sum(parts * factor[:, None], 0) / tl.sum(weight * factor, 0)
    tl.store(seen, found.to(out.dtype.element_ty))
