"""Prompts of random ids, and an open loop of requests."""

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def prompts_of(lengths: Sequence[int], vocab: int, seed: int) -> list[NDArray[np.uint32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length, np.uint32) for length in lengths]


def requests_of(rate: float, count: int, vocab: int) -> tuple[list[float], list[NDArray[np.uint32]], list[int]]:
    """Poisson arrivals; prompts and answers log-normal, mean about 1,019 and 463, at most 4,096 and 1,024. Always the
    same."""
    dice, rng = random.Random(5), np.random.default_rng(5)
    arrivals, lengths, answers, at = [], [], [], 0.0
    for _ in range(count):
        at += dice.expovariate(rate)
        arrivals.append(at)
        lengths.append(int(min(max(dice.lognormvariate(math.log(1019) - 0.45, 1.0), 16), 4096)))
        answers.append(int(min(max(dice.lognormvariate(math.log(463) - 0.27, 0.8), 16), 1024)))
    return arrivals, [rng.integers(0, vocab, n, np.uint32) for n in lengths], answers
