"""How many choices run at once, how many wait, and who is told to come back later."""

import asyncio
import enum
import math
from collections import deque
from dataclasses import dataclass, field

from services.gateway.errors import ApiError


@dataclass(eq=False)
class Ticket:
    """One HTTP request's place: `weight` choices."""

    weight: int
    running: bool = False
    admitted: asyncio.Future[None] | None = field(default=None, repr=False)
    since: float = 0.0


class Verdict(enum.Enum):
    RUN = "run"
    WAIT = "wait"
    REFUSE = "refuse"


class Line:
    """The pure part: first come, first served. Weights of the running never exceed `limit`, of the waiting `queue`.

    A request at the head that needs more room than there is holds up those behind it, so that it can't starve.
    """

    def __init__(self, limit: int, queue: int) -> None:
        self.limit = limit
        self.queue = queue
        self.running = 0
        self.waiting = 0
        self._line: deque[Ticket] = deque()

    def offer(self, ticket: Ticket) -> Verdict:
        """`ticket.weight` must not exceed the limit: it could never run."""
        if not 1 <= ticket.weight <= self.limit:
            raise ValueError(f"a ticket of {ticket.weight} choices can't run where {self.limit} may")
        if not self._line and self.running + ticket.weight <= self.limit:
            self._run(ticket)
            return Verdict.RUN
        if self.waiting + ticket.weight > self.queue:
            return Verdict.REFUSE
        self._line.append(ticket)
        self.waiting += ticket.weight
        return Verdict.WAIT

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Takes a ticket out, wherever it is; gives those that run now because of it. Idempotent."""
        if ticket.running:
            ticket.running = False
            self.running -= ticket.weight
        elif ticket in self._line:
            self._line.remove(ticket)
            self.waiting -= ticket.weight
        next_ones = []
        while self._line and self.running + self._line[0].weight <= self.limit:
            head = self._line.popleft()
            self.waiting -= head.weight
            self._run(head)
            next_ones.append(head)
        return next_ones

    def waiting_tickets(self) -> list[Ticket]:
        """In their order."""
        return list(self._line)

    def _run(self, ticket: Ticket) -> None:
        ticket.running = True
        self.running += ticket.weight


def retry_after_s(line: Line, mean_held_s: float) -> int:
    """When the line may have moved on: the time its weight takes at the pace so far, 1 to 60 s."""
    return max(1, min(60, math.ceil((line.waiting + 1) * mean_held_s / line.limit)))


class Admission:
    """A Line with waiting and time. Acquire and release come in pairs."""

    def __init__(self, limit: int, queue: int, timeout_s: float) -> None:
        self.line = Line(limit, queue)
        self._timeout_s = timeout_s
        self._mean_held_s = 1.0

    async def acquire(self, weight: int) -> Ticket:
        """Returns when the request may run. Raises ApiError(429) if the queue is full or the time is up."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(weight)
        match self.line.offer(ticket):
            case Verdict.REFUSE:
                raise self._refusal("too many requests are waiting")
            case Verdict.WAIT:
                ticket.admitted = loop.create_future()
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await ticket.admitted
                except TimeoutError:
                    self.release(ticket)
                    raise self._refusal(f"no room came free within {self._timeout_s:g} s") from None
                except BaseException:
                    self.release(ticket)
                    raise
        ticket.since = loop.time()
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Gives the place to those who wait. Idempotent."""
        if ticket.running and ticket.since:
            held_s = asyncio.get_running_loop().time() - ticket.since
            self._mean_held_s += 0.1 * (held_s - self._mean_held_s)
        for admitted in self.line.leave(ticket):
            if admitted.admitted is not None and not admitted.admitted.done():
                admitted.admitted.set_result(None)

    def refuse_waiting(self, error: ApiError) -> None:
        """Ends every wait with `error`."""
        for ticket in self.line.waiting_tickets():
            if ticket.admitted is not None and not ticket.admitted.done():
                ticket.admitted.set_exception(error)

    def _refusal(self, why: str) -> ApiError:
        return ApiError(
            429,
            f"{why}; try again later",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(retry_after_s(self.line, self._mean_held_s))},
        )
