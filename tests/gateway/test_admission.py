"""Admission against an obvious model: nobody is lost, nobody overtakes, the bounds hold."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission import Admission, Line, Ticket, Verdict, retry_after_s
from services.gateway.errors import ApiError

LIMIT, QUEUE = 5, 7

# An offer of so many choices, or the leaving of one of the tickets so far.
steps = st.lists(st.integers(1, LIMIT) | st.tuples(st.just("leave"), st.integers(0, 50)), max_size=60)


@given(steps)
def test_line(steps: list[int | tuple[str, int]]) -> None:
    line = Line(LIMIT, QUEUE)
    offered: list[Ticket] = []
    running: list[Ticket] = []
    waiting: list[Ticket] = []
    for step in steps:
        if isinstance(step, int):
            ticket = Ticket(step)
            fits = not waiting and sum(one.weight for one in running) + step <= LIMIT
            verdict = line.offer(ticket)
            if fits:
                assert verdict is Verdict.RUN
                running.append(ticket)
            elif sum(one.weight for one in waiting) + step <= QUEUE:
                assert verdict is Verdict.WAIT
                waiting.append(ticket)
            else:
                assert verdict is Verdict.REFUSE
            offered.append(ticket)
        elif offered:
            ticket = offered[step[1] % len(offered)]
            for where in (running, waiting):
                if ticket in where:
                    where.remove(ticket)
            admitted = []
            while waiting and sum(one.weight for one in running) + waiting[0].weight <= LIMIT:
                admitted.append(waiting.pop(0))
                running.append(admitted[-1])
            assert line.leave(ticket) == admitted
        assert (line.running, line.waiting) == (sum(t.weight for t in running), sum(t.weight for t in waiting))
        assert line.waiting_tickets() == waiting
        assert [ticket.running for ticket in offered] == [ticket in running for ticket in offered]


def test_what_could_never_run_is_refused_loudly() -> None:
    with pytest.raises(ValueError, match="6 choices"):
        Line(LIMIT, QUEUE).offer(Ticket(6))


def test_retry_after_is_between_a_second_and_a_minute() -> None:
    line = Line(2, 100)
    assert retry_after_s(line, 0.0) == 1
    line.waiting = 9
    assert retry_after_s(line, 4.0) == 20
    assert retry_after_s(line, 1e9) == 60


async def test_waits_for_its_turn() -> None:
    admission = Admission(2, 2, timeout_s=10)
    first = await admission.acquire(2)
    second = asyncio.create_task(admission.acquire(1))
    await asyncio.sleep(0)
    assert not second.done()
    with pytest.raises(ApiError, match="too many") as refusal:
        await admission.acquire(2)
    assert refusal.value.status == 429
    admission.release(first)
    admission.release(first)
    ticket = await second
    assert admission.line.running == 1
    admission.release(ticket)
    assert (admission.line.running, admission.line.waiting) == (0, 0)


async def test_a_cancelled_wait_gives_its_place_away_even_if_it_was_just_admitted() -> None:
    admission = Admission(1, 2, timeout_s=10)
    first = await admission.acquire(1)
    waits = [asyncio.create_task(admission.acquire(1)) for _ in range(2)]
    await asyncio.sleep(0)
    admission.release(first)  # admits waits[0], which has not run yet
    waits[0].cancel()
    admission.release(await waits[1])
    assert (admission.line.running, admission.line.waiting) == (0, 0)
