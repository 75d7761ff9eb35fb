"""One attached engine as requests see it: start, take its tokens, stop (B12-B14)."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from hostless.v1 import scheduler_pb2 as pb
from services.fabric.ring import Finish
from services.tokenizer.reader import Progress, Report
from services.tokenizer.ring_driver import Published
from services.tokenizer.submission import RingRequest, Submitted

BURST = 64


class EngineLost(Exception):
    """The engine, or its part in this request, is gone: no more tokens will come from it.

    `blame`: (engine_id, epoch) of engines that had better not be tried again for this request.
    """

    def __init__(self, message: str, blame: frozenset[tuple[str, int]]) -> None:
        super().__init__(message)
        self.blame = blame


class EngineFault(EngineLost):
    """The engine lives, but failed on this request; another one may do better."""


class Ring(Protocol):
    """What of an Attachment is used here."""

    @property
    def accepting(self) -> bool: ...
    def check(self, request: RingRequest) -> None: ...
    def submit(self, requests: list[RingRequest], published: Published) -> None: ...
    def cancel(self, handles: list[Submitted]) -> None: ...


class Flight:
    """One attempt of a request on one engine; the tag of its ring request."""

    __slots__ = ("abandoned", "ended", "handle", "on_published", "on_report", "take")

    def __init__(
        self,
        take: Callable[[list[int], bool], None],
        on_published: Callable[[], None],
        on_report: Callable[[Report], None],
    ) -> None:
        """`take` gets new tokens and whether the last one is a stop token; `on_report` comes last, abandoned or not."""
        self.take = take
        self.on_published = on_published
        self.on_report = on_report
        self.handle: Submitted | None = None
        self.abandoned = False
        self.ended: asyncio.Future[tuple[Finish, Report] | None] = asyncio.get_running_loop().create_future()
        """None: abandoned. Raises EngineLost."""


class EngineLink:
    """First come, first served: what does not fit into the ring now waits here, bounded by the service's admission."""

    def __init__(self, info: pb.EngineInfo) -> None:
        self.info = info
        self._ring: Ring | None = None
        self._waiting: deque[tuple[RingRequest, Flight]] = deque()
        self._flights: set[Flight] = set()
        self._flush_due = False
        self._asked = 0  # of those waiting, from the first: their publication is under way
        self._withdrawn = False  # some of those waiting are abandoned

    @property
    def key(self) -> frozenset[tuple[str, int]]:
        """The engine as one to blame."""
        return frozenset({(self.info.engine_id, self.info.epoch)})

    @property
    def usable(self) -> bool:
        return self._ring is not None and self._ring.accepting

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def flights(self) -> int:
        """Requests with a slot, until the engine has completed them."""
        return len(self._flights)

    def attach(self, ring: Ring) -> None:
        self._ring = ring

    def start(self, request: RingRequest) -> None:
        """Queues a request whose tag is its Flight; those of one event-loop turn are published as one burst.

        Raises BadRequest or TooLarge for one that this engine can never take, EngineLost.
        """
        flight = request.tag
        assert isinstance(flight, Flight)
        if self._ring is None or not self._ring.accepting:
            raise EngineLost(f"engine {self.info.engine_id} does not take requests now", self.key)
        self._ring.check(request)
        self._waiting.append((request, flight))
        self._flush_soon()

    def abandon(self, flight: Flight) -> None:
        """Nobody waits for this one any more: the engine is told at once. Its slot is reused when it has ended."""
        if flight.abandoned:
            return
        flight.abandoned = True
        if not flight.ended.done():
            flight.ended.set_result(None)
        if flight.handle is not None and flight in self._flights and self._ring is not None:
            self._ring.cancel([flight.handle])
        elif flight.handle is None:
            self._withdrawn = True

    def deliver(self, news: list[Progress]) -> None:
        """All that one poll of the ring brought."""
        completed = False
        for progress in news:
            flight = progress.handle.request.tag
            assert isinstance(flight, Flight)
            if not flight.abandoned and len(progress.tokens):
                try:
                    flight.take(progress.tokens.tolist(), progress.finish is Finish.STOP)
                except Exception as error:  # of this request only: its task is told, the others go on
                    if not flight.ended.done():
                        flight.ended.set_exception(error)
            if progress.finish is not None and progress.report is not None:
                completed = True
                self._complete(flight, progress.finish, progress.report)
        if completed and self._waiting:
            self._flush_soon()

    def lose(self, reason: str) -> None:
        """The engine is gone: every flight ends with EngineLost."""
        self._ring = None
        lost = [*self._flights, *(flight for _, flight in self._waiting)]
        self._flights.clear()
        self._waiting.clear()
        for flight in lost:
            if not flight.ended.done():
                flight.ended.set_exception(EngineLost(f"engine {self.info.engine_id} was lost: {reason}", self.key))
                flight.ended.exception()  # an abandoned flight is awaited by nobody

    def _complete(self, flight: Flight, finish: Finish, report: Report) -> None:
        self._flights.discard(flight)
        flight.on_report(report)
        if not flight.ended.done():
            flight.ended.set_result((finish, report))

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._ring is None or self._asked:
            return
        if self._withdrawn:
            self._waiting = deque(entry for entry in self._waiting if not entry[1].abandoned)
            self._withdrawn = False
        if burst := [request for request, _ in islice(self._waiting, BURST)]:
            self._asked = len(burst)
            self._ring.submit(burst, self._published)

    def _published(self, handles: list[Submitted]) -> None:
        """Of the burst that was asked; what found no place waits until a slot is free."""
        asked, self._asked = self._asked, 0
        late = []
        for handle in handles:
            _, flight = self._waiting.popleft()
            flight.handle = handle
            self._flights.add(flight)
            if flight.abandoned:
                late.append(handle)
            else:
                flight.on_published()
        if late and self._ring is not None:
            self._ring.cancel(late)
        if len(handles) == asked:
            self._flush_soon()
