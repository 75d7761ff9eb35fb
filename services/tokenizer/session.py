"""One gateway's session: its requests, and the deltas it has not taken yet."""

import asyncio
from collections.abc import Awaitable, Callable

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.request import Request
from services.tokenizer.tool_formats import Opening


class SessionOverflow(Exception):
    """The gateway takes its deltas more slowly than they come; its bound is reached."""


class DuplicateId(ValueError):
    """The gateway used an id for a second request while the first one runs."""


class GatewaySession:
    """The sink of its requests. Deltas gather in one message until the gateway takes it: at most one message
    a poll of the rings, fewer and larger ones for a slow gateway, and never more than the bound in memory.
    """

    def __init__(self, max_unsent_deltas: int) -> None:
        self.requests: dict[int, tuple[Request, asyncio.Task[None]]] = {}
        self.messages = 0
        self._bound = max_unsent_deltas
        self._down = pb.SessionDown()
        self._add = self._down.deltas.add
        self._unsent = 0
        self._ready = asyncio.Event()
        self.overflowed = asyncio.Event()

    @property
    def unsent(self) -> int:
        """Deltas that wait for the gateway."""
        return self._unsent

    def admit(self, request: Request, task: asyncio.Task[None]) -> None:
        """`task` serves the request; the entry goes when it is done."""
        self.requests[request.id] = request, task
        task.add_done_callback(lambda _: self.requests.pop(request.id, None))

    def cancel(self, id: int) -> None:
        """Ends a request now; its last delta says so. One that has ended is left alone."""
        if entry := self.requests.get(id):
            request, task = entry
            request.finish(pb.FINISH_CANCELLED)
            task.cancel()

    def opens(self, id: int, opening: Opening) -> None:
        self._add(id=id, tool_format=opening.tool_format, text=opening.text)
        self._unsent += 1
        self._note()

    def text(self, id: int, text: str, tokens: int) -> None:
        self._add(id=id, text=text, tokens=tokens)
        self._unsent += 1
        if self._unsent == 1 or self._unsent > self._bound:  # once a message: this is the token path
            self._note()

    def end(self, delta: pb.Delta) -> None:
        self._down.deltas.append(delta)
        self._unsent += 1
        self._note()

    async def send(self, write: Callable[[pb.SessionDown], Awaitable[None]]) -> None:
        """Sends what gathers, for ever. `write` returns when the transport has taken the message."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            down, self._down, self._unsent = self._down, pb.SessionDown(), 0
            self._add = self._down.deltas.add
            self.messages += 1
            await write(down)

    async def watch_bound(self) -> None:
        """Raises SessionOverflow when the gateway falls too far behind."""
        await self.overflowed.wait()
        raise SessionOverflow(f"the gateway has left {self._bound} deltas unread")

    def _note(self) -> None:
        self._ready.set()
        if self._unsent > self._bound:
            self.overflowed.set()
