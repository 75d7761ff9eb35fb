"""From a step in engine memory to what a batched forward pass needs: pure numpy, no torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.engine import PAGE_TOKENS, EngineError, ModelGeometry, StepView

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SingleGroup:
    """Sequences with one new token each, of about equal length, that attend in one call.

    Rows begin .. begin + len(lengths) of the step. pages[i] repeats its first page where it is padded,
    so that a sequence never reads another one's memory.
    """

    begin: int
    pages: Int64s  # [sequences, most pages]
    lengths: Int64s  # [sequences]: positions to attend to, the new one among them


@dataclass(frozen=True)
class Chunk:
    """One sequence with several new tokens: rows begin .. begin + count, at position .. on."""

    begin: int
    count: int
    position: int
    pages: Int64s


@dataclass(frozen=True)
class StepPlan:
    """Rows are the step's new tokens: first those of single-token sequences, short ones first."""

    tokens: Int64s  # [rows]
    positions: Int64s  # [rows]
    write_pages: Int64s  # [rows]: where each row's KV goes
    write_offsets: Int64s  # [rows]
    singles: tuple[SingleGroup, ...]
    chunks: tuple[Chunk, ...]
    sampled_rows: Int64s  # [samples]
    sampled_sequences: Int64s  # [samples]: index in the view's sequences and out_tokens


def plan_step(view: StepView, geometry: ModelGeometry, pages: int, group_pages: int = 1 << 30) -> StepPlan:
    """group_pages bounds what one group of sequences gathers.

    Raises EngineError, naming the sequence, if anything lies outside its bounds.
    """
    sequences = view.sequences[: view.sequence_count]
    active = np.flatnonzero(sequences["token_count"])
    _check_sequences(view, sequences, active, geometry)
    counts = sequences["token_count"].astype(np.int64)
    positions = sequences["position"].astype(np.int64)
    page_counts = (positions + counts + PAGE_TOKENS - 1) // PAGE_TOKENS
    order = active[np.lexsort((page_counts[active], counts[active] > 1))]
    counts, positions, page_counts = counts[order], positions[order], page_counts[order]

    starts = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(starts, counts)
    token_index = np.repeat(sequences["token_begin"][order].astype(np.int64), counts) + within
    row_positions = np.repeat(positions, counts) + within
    tables = view.block_tables[sequences["lane"][order]].astype(np.int64)
    row_pages = tables[np.repeat(np.arange(len(order)), counts), row_positions // PAGE_TOKENS]
    tokens = view.tokens[token_index].astype(np.int64)
    _check_tokens(tokens, geometry)
    _check_pages(tables, page_counts, sequences["slot"][order], pages)

    single_count = int(np.count_nonzero(counts == 1))
    sampled = np.flatnonzero(sequences["sample"][order])
    return StepPlan(
        tokens=tokens,
        positions=row_positions,
        write_pages=row_pages,
        write_offsets=row_positions % PAGE_TOKENS,
        singles=tuple(
            _single_group(begin, end, tables, page_counts, positions)
            for begin, end in group_by_pages(page_counts[:single_count], group_pages)
        ),
        chunks=tuple(
            Chunk(int(starts[i]), int(counts[i]), int(positions[i]), tables[i, : page_counts[i]])
            for i in range(single_count, len(order))
        ),
        sampled_rows=starts[sampled] + counts[sampled] - 1,
        sampled_sequences=order[sampled],
    )


def group_by_pages(page_counts: Int64s, most: int) -> list[tuple[int, int]]:
    """Cuts ascending page counts into runs of little padding and at most `most` pages, padding included.

    A call costs about as much as attending to four pages does, so up to four padded pages are free. A
    longer sequence than `most` is a run of its own.
    """
    groups: list[tuple[int, int]] = []
    begin, real = 0, 0
    for i, count in enumerate(page_counts.tolist()):
        total = count * (i - begin + 1)
        if i > begin and (total > most or total - real - count > 4 + (real + count) // 8):
            groups.append((begin, i))
            begin, real = i, 0
        real += count
    if len(page_counts):
        groups.append((begin, len(page_counts)))
    return groups


def _single_group(begin: int, end: int, tables: Int64s, page_counts: Int64s, positions: Int64s) -> SingleGroup:
    longest = int(page_counts[end - 1])
    pages = tables[begin:end, :longest]
    padding = np.arange(longest) >= page_counts[begin:end, None]
    return SingleGroup(begin, np.where(padding, pages[:, :1], pages), positions[begin:end] + 1)


def _check_sequences(
    view: StepView, sequences: NDArray[Any], active: NDArray[np.intp], geometry: ModelGeometry
) -> None:
    lanes, lane_pages = view.block_tables.shape
    room = min(geometry.max_context, lane_pages * PAGE_TOKENS)
    lane, count = sequences["lane"][active], sequences["token_count"][active].astype(np.int64)
    ends = sequences["position"][active].astype(np.int64) + count
    token_ends = sequences["token_begin"][active].astype(np.int64) + count
    for wrong, what in (
        (lane >= lanes, f"its lane is none of {lanes}"),
        (ends > room, f"it would reach past position {room}"),
        (token_ends > min(view.token_count, len(view.tokens)), f"tokens past the step's {view.token_count}"),
    ):
        if wrong.any():
            row = sequences[active[np.argmax(wrong)]]
            raise EngineError(f"step refused: slot {row['slot']}, lane {row['lane']}: {what}")
    if len(np.unique(lane)) != len(lane):
        raise EngineError("step refused: two sequences share a lane")


def _check_tokens(tokens: Int64s, geometry: ModelGeometry) -> None:
    if len(tokens) and tokens.max() >= geometry.vocab:
        raise EngineError(f"step refused: token {tokens.max()} is outside the vocabulary of {geometry.vocab}")


def _check_pages(tables: Int64s, page_counts: Int64s, slots: NDArray[Any], pages: int) -> None:
    wrong = (tables >= pages) & (np.arange(tables.shape[1]) < page_counts[:, None])
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise EngineError(
            f"step refused: slot {slots[row]}: page {tables[row, column]} of its block table is none of {pages}"
        )
