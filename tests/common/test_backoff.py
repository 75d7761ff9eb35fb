"""Pauses: doubling, bounded, begun anew."""

import asyncio

import pytest

from services.common.backoff import Backoff


async def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    backoff = Backoff(first_s=1.0, longest_s=3.0)
    for _ in range(4):
        await backoff.pause()
    backoff.reset()
    await backoff.pause()
    backoff.lengthen()
    await backoff.pause()
    longest = [1.0, 2.0, 3.0, 3.0, 1.0, 3.0]
    assert all(most / 2 <= seconds <= most for seconds, most in zip(slept, longest, strict=True))
