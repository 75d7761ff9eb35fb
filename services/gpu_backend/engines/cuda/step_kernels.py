"""Triton kernels that read a step from engine memory: its rows, their embeddings, the rows to sample.

A row is a new token. `positions` and `lanes` (int32[rows], -1: padding) are all that later kernels need
beside the block tables.
"""

import triton
import triton.language as tl

SEQUENCE_WORDS = tl.constexpr(12)  # of a StepSequence; fields by number:
LANE = tl.constexpr(0)
TOKEN_BEGIN = tl.constexpr(1)
TOKEN_COUNT = tl.constexpr(2)
POSITION = tl.constexpr(3)
SAMPLE = tl.constexpr(4)

PAGE = tl.constexpr(64)


@triton.jit
def unpack_decode(
    sequences, sequence_count, tokens, embedding, hidden, positions, lanes, split_pages, error,
    vocab, width, rows, split_target, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Row i is sequence i. Grid: rows. Also decides how many pages a split of attention takes.

    split_pages[0]: pages of all sequences over `split_target` programs, rounded up, at least 1.
    """
    row = tl.program_id(0)
    every = tl.arange(0, ROWS)
    seats = every < tl.minimum(tl.load(sequence_count), rows)
    counts = tl.load(sequences + every * SEQUENCE_WORDS + TOKEN_COUNT, seats, 0)
    places = tl.load(sequences + every * SEQUENCE_WORDS + POSITION, seats, 0)
    if row == 0:
        pages = tl.sum(tl.where(counts != 0, (places + PAGE - 1) // PAGE, 0))
        tl.store(split_pages, tl.maximum((pages + split_target - 1) // split_target, 1))
    mine = every == row
    live = tl.sum(tl.where(mine, counts, 0)) != 0
    position = tl.sum(tl.where(mine, places, 0))
    at = sequences + row * SEQUENCE_WORDS
    token = tl.load(tokens + tl.load(at + TOKEN_BEGIN, live, 0), live, 0)
    tl.store(positions + row, tl.where(live, position, -1))
    tl.store(lanes + row, tl.load(at + LANE, live, -1))
    _embed(row, token, live, embedding, hidden, error, vocab, width, WIDTH)


@triton.jit
def unpack_prefill(
    sequences, sequence_count, tokens, embedding, hidden, positions, lanes, first_single, split_pages, error,
    vocab, width, sequences_most, split_target, SEQUENCES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Row r is token r of the step, whichever sequence it belongs to. Grid: rows.

    first_single[0]: the rows from there on are of sequences with one token each, decodes as a rule. split_pages as in
    unpack_decode, for those.
    """
    row = tl.program_id(0)
    every = tl.arange(0, SEQUENCES)
    at = sequences + every * SEQUENCE_WORDS
    seats = every < tl.minimum(tl.load(sequence_count), sequences_most)
    begins = tl.load(at + TOKEN_BEGIN, seats, 0)
    counts = tl.load(at + TOKEN_COUNT, seats, 0)
    places = tl.load(at + POSITION, seats, 0)
    if row == 0:
        begin = tl.max(tl.where(counts > 1, begins + counts, 0), 0)
        single = (counts == 1) & (begins >= begin)
        pages = tl.sum(tl.where(single, (places + PAGE - 1) // PAGE, 0))
        tl.store(first_single, begin)
        tl.store(split_pages, tl.maximum((pages + split_target - 1) // split_target, 1))
    mine = seats & (begins <= row) & (row < begins + counts)
    live = tl.sum(mine.to(tl.int32)) != 0
    position = tl.sum(tl.where(mine, places + row - begins, 0))
    lane = tl.sum(tl.where(mine, tl.load(at + LANE, seats, 0), 0))
    token = tl.load(tokens + row, live, 0)
    tl.store(positions + row, tl.where(live, position, -1))
    tl.store(lanes + row, tl.where(live, lane, -1))
    _embed(row, token, live, embedding, hidden, error, vocab, width, WIDTH)


@triton.jit
def _embed(row, token, live, embedding, hidden, error, vocab, width, WIDTH: tl.constexpr):
    """hidden[row] = embedding[token]; zeros for padding. A token outside the vocabulary fails the step."""
    inside = (token >= 0) & (token < vocab)
    if live & (not inside):
        tl.store(error, 1)
    columns = tl.arange(0, WIDTH)
    within = columns < width
    token = tl.where(inside, token, 0).to(tl.int64)
    values = tl.load(embedding + token * width + columns, within & live, 0.0)
    tl.store(hidden + row.to(tl.int64) * width + columns, values, within)


@triton.jit
def gather_last(sequences, sequence_count, hidden, out, width, rows, WIDTH: tl.constexpr):
    """out[i] = hidden of the last row of sequence i; zeros where nothing is sampled. Grid: sequences."""
    i = tl.program_id(0)
    at = sequences + i * SEQUENCE_WORDS
    seat = i < tl.load(sequence_count)
    count = tl.load(at + TOKEN_COUNT, seat, 0)
    last = tl.load(at + TOKEN_BEGIN, seat, 0) + count - 1
    wanted = (count > 0) & (tl.load(at + SAMPLE, seat, 0) == 1) & (last < rows)
    columns = tl.arange(0, WIDTH)
    within = columns < width
    values = tl.load(hidden + last.to(tl.int64) * width + columns, within & wanted, 0.0)
    tl.store(out + i.to(tl.int64) * width + columns, values, within)
