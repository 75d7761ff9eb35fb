"""Workloads from logs: Mooncake's public traces, and this mesh's own request log. One JSON object a line.

Mooncake: {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one a block of 512 tokens]};
blocks of the same prefix have the same ids, so hits follow from what came before.

This mesh: {"arrived_s": s, "prompt_tokens": n, "cached_tokens": n, "output_tokens": n}, and for the fidelity harness
what was measured: {"ttft_s": s, "ttst_s": s, "tpot_s": s, "finished_s": s}, of which ttst_s is from the first token to
the second, and tpot_s is a token's time from the second on. Lines with an "agent" are its turns, in their order:
each comes when the one before has ended, whenever that is. Without, each comes at its time.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.global_scheduler.simulator.workload import BLOCK_TOKENS, Workload

MOONCAKE_BLOCK = 512


class TraceError(ValueError):
    """A line of a log doesn't hold together; the message names file and line."""


def read_mooncake(path: Path) -> Workload:
    """Every request an agent of one turn, at its timestamp. Raises TraceError."""
    known: set[int] = set()
    rows = []
    for where, line in _lines(path):
        at, prompt = line["timestamp"] / 1000, line["input_length"]
        hit = 0
        for block in line["hash_ids"]:
            if block not in known:
                break
            hit += MOONCAKE_BLOCK
        known.update(line["hash_ids"])
        rows.append(_checked(where, at, prompt, min(hit, prompt - 1), max(1, line["output_length"])))
    return _workload(path, rows)


def read_requests(path: Path) -> Workload:
    """This mesh's request log. Raises TraceError."""
    agents = _agents(path)
    names = ("arrived_s", "prompt_tokens", "cached_tokens", "output_tokens")
    rows = [_checked(where, *(line[name] for name in names)) for agent in agents for where, line in agent]
    return _workload(path, rows, [len(agent) for agent in agents])


def read_measured(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """The measured columns of this mesh's request log by agent, then turn; NaN where a line lacks one. Raises
    TraceError."""
    lines = [line for agent in _agents(path) for _, line in agent]
    names = ("arrived_s", "ttft_s", "ttst_s", "tpot_s", "finished_s")
    return {name: np.array([float(line.get(name, "nan")) for line in lines]) for name in names}


def _agents(path: Path) -> list[list[tuple[str, Any]]]:
    """The lines of each agent, which a line without one is by itself."""
    agents: dict[str, list[tuple[str, Any]]] = {}
    for where, line in _lines(path):
        name = f"agent {line['agent']}" if "agent" in line else where
        agents.setdefault(name, []).append((where, line))
    return list(agents.values())


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open() as file:
        for number, text in enumerate(file, 1):
            where = f"{path}, line {number}"
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise TraceError(f"{where}: not JSON: {error}") from error
            if not isinstance(line, dict):
                raise TraceError(f"{where}: not an object")
            yield where, _Named(where, line)


class _Named(dict[str, Any]):
    """A line whose missing fields are errors that say where."""

    def __init__(self, where: str, line: dict[str, Any]) -> None:
        super().__init__(line)
        self._where = where

    def __missing__(self, name: str) -> Any:
        raise TraceError(f"{self._where}: {name} is missing")


def _checked(where: str, at: float, prompt: int, cached: int, output: int) -> tuple[float, int, int, int]:
    if prompt < 1 or output < 1 or not 0 <= cached <= prompt or at < 0:
        raise TraceError(f"{where}: {prompt} prompt, {cached} cached, {output} output tokens at {at} s make no request")
    whole = min(cached, prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS  # the last token is always computed
    return at, prompt, whole, output


def _workload(path: Path, rows: list[tuple[float, int, int, int]], turns: Sequence[int] = ()) -> Workload:
    """`turns`: of each agent; empty: each has one."""
    if not rows:
        raise TraceError(f"{path}: no requests")
    at, prompt, cached, output = zip(*rows, strict=True)
    begin = np.concatenate([[0], np.cumsum(turns or [1] * len(rows))]).astype(np.int32)
    start = np.array(at, np.float64)[begin[:-1]]
    return Workload(
        begin=begin,
        prompt=np.array(prompt, np.int32),
        cached=np.array(cached, np.int32),
        output=np.array(output, np.int32),
        pause_s=np.zeros(len(rows)),
        start_s=start - start.min(),
        trajectory=np.arange(len(start), dtype=np.int32),
    )
