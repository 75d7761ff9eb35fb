"""A client's way to a lane: found by itself, left when it breaks."""

import asyncio
import time
from collections.abc import Callable

from services.common.lane.client import Lane, LaneClosed

JOIN_S = 2.0
"""To connect, at most; meanwhile there are only calls."""

SILENT_S = 5.0
"""A lane that has not answered for so long is left. Until then it is kept: its late answers may hold what must be given
back."""

RETRY_S = 30.0
"""A lane that can't be connected to is left alone for so long."""


class Shortcut:
    """Beside a channel to the same service: ask here first, and make a call where there is no lane."""

    def __init__(self, address: str, method: str, unwanted: Callable[[bytes], None] | None = None) -> None:
        """`method` is `package.Service/Method`. `unwanted` gets the answer to a request whose caller went away."""
        self._host = address.rpartition(":")[0].strip("[]")
        self._method = method
        self._unwanted = unwanted
        self.lane: Lane | None = None
        self.joining: asyncio.Task[None] | None = None
        self._not_until = 0.0

    def offer(self, port: int) -> None:
        """A call's answer told the lane's port, 0 if there is none. Connects in the background."""
        if port and self.lane is None and self.joining is None and time.monotonic() >= self._not_until:
            self.joining = asyncio.create_task(self._join(port))

    async def ask(self, request: bytes, timeout_s: float) -> bytes | None:
        """The answer; None without a lane: make a call. Raises TimeoutError."""
        lane = self.lane
        if lane is None:
            return None
        try:
            return await lane.ask(request, timeout_s)
        except LaneClosed:
            self._leave(lane)
            return None
        except TimeoutError:
            if lane.silent_s > SILENT_S:
                self._leave(lane)
            raise

    async def close(self) -> None:
        """Idempotent."""
        if self.joining is not None:
            await asyncio.wait((self.joining,))
        self._leave(self.lane)

    async def _join(self, port: int) -> None:
        try:
            async with asyncio.timeout(JOIN_S):
                self.lane = await Lane.connect(self._host, port, self._method, self._unwanted)
        except (OSError, TimeoutError):
            self._not_until = time.monotonic() + RETRY_S  # a port that can't be reached from here, say
        finally:
            self.joining = None

    def _leave(self, lane: Lane | None) -> None:
        """Unless another one is there already."""
        if lane is not None and lane is self.lane:
            lane.close()
            self.lane = None
