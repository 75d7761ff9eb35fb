"""A ring behind a network, on a thread of its own: a network that is slow, or gone, holds up nobody else's tokens."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence

from services.fabric.ring import EngineStatus
from services.tokenizer.pacing import AdaptivePoll
from services.tokenizer.reader import Progress
from services.tokenizer.ring_driver import Attached, Published
from services.tokenizer.submission import RingRequest, Submitted

log = logging.getLogger(__name__)

NEWS_AHEAD = 4
"""Polls whose news the event loop has not taken yet, at most: then the thread waits for it."""

CLOSE_S = 10.0
"""How long close() waits for the thread, whose calls to a network fail soon once they are interrupted."""

Job = Callable[[], None]


class RingOnThread:
    """A RingDriver. The thread alone touches the share; what it has for the event loop goes there in order.

    What waits for the thread is bounded: a burst, a status, and a cancel for each request in flight.
    """

    def __init__(self, ring: Attached) -> None:
        """Use it on the running event loop only. The thread ends with close(), or by itself when the ring fails."""
        self._share, self._deliver, self._may_write = ring.share, ring.deliver, ring.may_write
        self._pace, self._clock = AdaptivePoll(ring.pace), ring.clock
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None: stop
        self._room = threading.Semaphore(NEWS_AHEAD)
        self._stopping = False
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="ring", daemon=True)
        self._thread.start()

    # --- on the event loop ---

    def submit(self, requests: Sequence[RingRequest], published: Published) -> None:
        def job() -> None:
            self._may_write()
            handles = self._share.submit(requests)
            self._tell(lambda: published(handles))

        self._jobs.put(job)

    def cancel(self, handles: Iterable[Submitted]) -> None:
        def job() -> None:
            self._may_write()
            self._share.cancel(handles)

        self._jobs.put(job)

    async def status(self) -> EngineStatus:
        answer: asyncio.Future[EngineStatus] = self._loop.create_future()

        def job() -> None:
            found = self._share.read_status()
            self._tell(lambda: None if answer.done() else answer.set_result(found))

        self._jobs.put(job)
        return await answer

    async def run(self) -> None:
        await asyncio.wait((self._failure,))
        self._failure.result()

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._share.region.interrupt()
            self._room.release()
            self._jobs.put(None)

    async def close(self) -> None:
        self.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._closed.wait()
        except TimeoutError:
            log.error("a ring's thread does not end; it is left behind", extra={"seconds": CLOSE_S})

    def _take(self, progress: list[Progress]) -> None:
        self._room.release()
        self._deliver(progress)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # run() may not be waiting any more

    # --- on the thread ---

    def _work(self) -> None:
        try:
            self._turn_until_stopped()
        except Exception as error:  # whatever it is, run() raises it
            failure = error
            self._tell(lambda: self._fail(failure))
        try:
            self._share.close()
        finally:  # or close() would wait without end
            self._loop.call_soon_threadsafe(self._closed.set)

    def _turn_until_stopped(self) -> None:
        due: float | None = None  # the next poll; None: nothing is in flight
        while not self._stopping:
            try:
                job = self._jobs.get(timeout=None if due is None else max(0.0, due - self._clock()))
            except queue.Empty:
                due = self._poll()
                continue
            if job is not None:
                job()
            if due is None and self._share.in_flight:
                due = self._clock()
                self._pace.begin(due)

    def _poll(self) -> float | None:
        """Answers when to poll next."""
        self._may_write()  # completion releases slots
        progress, more = self._share.poll()
        if progress:
            self._room.acquire()
            self._tell(lambda: self._take(progress))
        now = self._clock()
        wait = self._pace.polled(now, bool(progress))
        if not self._share.in_flight:
            return None
        return now if more else now + wait

    def _tell(self, what: Job) -> None:
        """Runs it on the event loop, after all that was told before, unless stop() comes first."""

        def run() -> None:
            if self._stopping:
                return
            try:
                what()
            except Exception as error:
                self._fail(error)

        self._loop.call_soon_threadsafe(run)
