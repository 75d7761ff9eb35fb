"""One leased share of a ring: all that touches the ring's memory (B12-B14). No asyncio, no lease, no clock."""

import time
from collections.abc import Iterable, Sequence

from services.fabric.remote_region import RemoteRegion
from services.fabric.ring import EngineStatus, RingClient, Share
from services.tokenizer.reader import Poll, TokenReader
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import RingRequest, Submitted, Submitter


class RingShare:
    """For one thread at a time, but check() and in_flight are for any. All else raises FabricError."""

    def __init__(self, region: RemoteRegion, share: Share, tokens_per_poll: int) -> None:
        """Reads the ring's header, the share's slots and the status. Closes `region` with close(), or if it fails."""
        self.region = region
        try:
            self._ring = RingClient(region, share)
            self._submitter = Submitter(self._ring, SlotTracker(share.slot_begin, self._ring.read_words()))
            self._reader = TokenReader(self._ring, self._submitter.release, tokens_per_poll)
            self.status = self._ring.read_status()
            """As it was then."""
        except BaseException:
            region.close()
            raise

    @property
    def epoch(self) -> int:
        """Of the engine that this share was leased from."""
        return self._ring.epoch

    @property
    def in_flight(self) -> int:
        return self._reader.in_flight

    def handles(self) -> list[Submitted]:
        """All requests in flight."""
        return self._reader.handles()

    def check(self, request: RingRequest) -> None:
        """Raises BadRequest, or TooLarge if no state of the ring could ever take the request."""
        self._submitter.check(request)

    def submit(self, requests: Sequence[RingRequest]) -> list[Submitted]:
        """Publishes as many requests as fit now, in order. Raises what check() raises, before anything is written."""
        handles = self._submitter.submit(requests, time.time_ns())
        self._reader.add(handles)
        return handles

    def cancel(self, handles: Iterable[Submitted]) -> None:
        """Asks for the end of requests in flight; their last news comes as ever."""
        self._submitter.cancel(handles)

    def poll(self) -> Poll:
        """What is new; slots of completed requests are free again."""
        return self._reader.poll()

    def read_status(self) -> EngineStatus:
        return self._ring.read_status()

    def close(self) -> None:
        """Idempotent."""
        self._ring.close()
