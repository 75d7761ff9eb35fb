"""Workloads: trajectories of turns, and agents that replay them. Made from published statistics, with a seed."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from services.global_scheduler._simulator import Trace

BLOCK_TOKENS = 64
TURN_SPREAD = 18  # the longest trajectory has so many times the turns of the shortest


@dataclass(frozen=True)
class Statistics:
    """Of a set of agent trajectories: means over trajectories (docs/simulator.md gives the source of each)."""

    max_context: int  # no trajectory grows longer
    turns: float
    context: float  # prompt of a turn
    append: float  # tokens that a turn adds to the prompt, the first prompt included
    output: float
    total: float  # prompt and output of the last turn

    def scaled(self, append: float = 1.0, output: float = 1.0) -> "Statistics":
        """Longer (or shorter) appends and answers; as much context as before, so fewer (or more) turns."""
        growth = self.append * append + self.output * output
        turns = self.turns * (self.append + self.output) / growth
        return replace(self, turns=turns, append=self.append * append, output=self.output * output)


PUBLISHED = {
    "32k": Statistics(32_768, turns=60, context=17_183, append=608, output=148, total=28_639),
    "48k": Statistics(49_152, turns=106, context=25_120, append=474, output=172, total=42_607),
    "64k": Statistics(65_536, turns=157, context=32_721, append=429, output=176, total=55_958),
}


@dataclass(frozen=True)
class Workload:
    """Turns of trajectory i are [begin[i], begin[i + 1]). Agent a starts at start_s[a] and replays trajectory[a]."""

    begin: npt.NDArray[np.int32]
    prompt: npt.NDArray[np.int32]
    cached: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    pause_s: npt.NDArray[np.float64]  # before a turn: what the tool takes
    start_s: npt.NDArray[np.float64]
    trajectory: npt.NDArray[np.int32]

    @property
    def agents(self) -> int:
        return len(self.start_s)

    @property
    def turns(self) -> int:
        """Of all agents."""
        return int(np.diff(self.begin)[self.trajectory].sum())

    def trace(self) -> Trace:
        return Trace(self.begin, self.prompt, self.cached, self.output, self.pause_s)

    def closed(self, agents: int) -> "Workload":
        """So many agents that all start now, trajectories in turn (offline)."""
        trajectory = np.arange(agents, dtype=np.int32) % (len(self.begin) - 1)
        return replace(self, start_s=np.zeros(agents), trajectory=trajectory.astype(np.int32))

    def open(self, agents_per_s: float, duration_s: float, seed: int) -> "Workload":
        """Agents that arrive by a Poisson process, each with a trajectory drawn at random (online)."""
        rng = np.random.default_rng([seed, 1])
        gaps = rng.exponential(1 / agents_per_s, int(agents_per_s * duration_s * 2) + 64)
        start = np.cumsum(gaps)
        start = start[start < duration_s]
        trajectory = rng.integers(0, len(self.begin) - 1, len(start), dtype=np.int32)
        return replace(self, start_s=start, trajectory=trajectory)

    def statistics(self) -> dict[str, float]:
        """Means over trajectories, as `Statistics` names them, and the hit rate."""
        turns = np.diff(self.begin)
        last = self.begin[1:] - 1
        mean = {name: np.add.reduceat(values, self.begin[:-1]) / turns for name, values in self._by_turn().items()}
        return {
            "turns": float(turns.mean()),
            "context": float(mean["context"].mean()),
            "append": float(mean["append"].mean()),
            "output": float(mean["output"].mean()),
            "total": float((self.prompt + self.output)[last].mean()),
            "hit_rate": 1 - float(mean["append"].mean() / mean["context"].mean()),
        }

    def _by_turn(self) -> dict[str, npt.NDArray[np.float64]]:
        before = np.concatenate([[0], (self.prompt + self.output)[:-1]])
        before[self.begin[:-1]] = 0
        append = (self.prompt - before).astype(np.float64)
        return {"context": self.prompt.astype(np.float64), "append": append, "output": self.output.astype(np.float64)}


def generate(statistics: Statistics, seed: int, trajectories: int = 500, pause_s: float = 0.0) -> Workload:
    """Trajectories with these means. Turns are spread uniformly over a factor of TURN_SPREAD, so that trajectories of
    the same length differ in how many turns they take to get there; that is what makes the published means agree with
    each other. Hits are whole blocks of 64 tokens. Tool times are exponential with mean `pause_s`."""
    rng = np.random.default_rng([seed, 0])
    s = statistics
    least = 2 * s.turns / (1 + TURN_SPREAD)
    turns = np.maximum(2, _spread(rng, least, TURN_SPREAD * least, trajectories).round()).astype(np.int64)
    fraction = s.total / s.max_context
    total = s.max_context * _spread(rng, 2 * fraction - 1, 1, trajectories)
    first_share = max(0.01, 2 * s.context / s.total - 1)
    output_share = s.output / (s.append + s.output)
    prompts, cached, outputs = [], [], []
    for count, length in zip(turns, total, strict=True):
        first = first_share * length
        answers = _split(rng, output_share * length, count)
        appends = _split(rng, (1 - output_share) * length - first, count - 1)
        grown = np.concatenate([[0], np.cumsum(answers[:-1] + appends)])
        prompt = int(first) + grown
        written = np.concatenate([[0], (prompt + answers - 1)[:-1]])
        prompts.append(prompt)
        cached.append(written // BLOCK_TOKENS * BLOCK_TOKENS)
        outputs.append(answers)
    flat = [np.concatenate(parts).astype(np.int32) for parts in (prompts, cached, outputs)]
    pause = rng.exponential(pause_s, len(flat[0])) if pause_s > 0 else np.zeros(len(flat[0]))
    begin = np.concatenate([[0], np.cumsum(turns)]).astype(np.int32)
    return Workload(begin, flat[0], flat[1], flat[2], pause, np.zeros(0), np.zeros(0, np.int32))


def _spread(rng: np.random.Generator, low: float, high: float, count: int) -> npt.NDArray[np.float64]:
    """Uniform in [low, high], evenly: one in each of `count` equal parts, in random order."""
    values = low + (high - low) * (np.arange(count) + rng.uniform(0, 1, count)) / count
    return rng.permutation(values)


def _split(rng: np.random.Generator, total: float, parts: int) -> npt.NDArray[np.int64]:
    """`total` cut at random into whole parts of at least one (exponential spacings)."""
    weights = rng.exponential(1.0, parts)
    whole: npt.NDArray[np.int64] = np.maximum(1, np.floor(weights / weights.sum() * total)).astype(np.int64)
    return whole
