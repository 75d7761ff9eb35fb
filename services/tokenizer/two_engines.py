"""A request that two engines share: one prefills and samples the first token, the other goes on (D3).

To the client it is one stream. Both rings show the first token, and nothing is known about whose news comes first.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.fabric.ring import Finish
from services.tokenizer.engine_link import EngineLink, EngineLost, Flight
from services.tokenizer.live_engines import Tried
from services.tokenizer.reader import Report
from services.tokenizer.submission import RingRequest

Take = Callable[[list[int], bool], None]

HAND_OVER_LOST = "the prompt's KV did not get from the prefill engine to the decode engine"


class OneStream:
    """Each engine tells all tokens from the request's first on; each token is taken once."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self.tokens = 0

    @property
    def decoding(self) -> bool:
        """Whether the decode engine has shown more than the prefill engine can."""
        return self.tokens > 1

    def of_engine(self) -> Take:
        begin = 0

        def take(ids: list[int], stop_token_last: bool) -> None:
            nonlocal begin
            fresh = ids[max(self.tokens - begin, 0) :]
            begin += len(ids)
            if fresh:
                self.tokens = begin
                self._take(fresh, stop_token_last)

        return take


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    link: EngineLink
    request: RingRequest

    @property
    def flight(self) -> Flight:
        assert isinstance(self.request.tag, Flight)
        return self.request.tag

    def abandon(self) -> None:
        self.link.abandon(self.flight)


async def fly(
    prefill: Side, decode: Side, published: asyncio.Future[None], stream: OneStream
) -> tuple[Finish, Report] | None:
    """How the request ended; None: abandoned. `published` is done once the decode engine has the request.

    The decode engine comes first, so that the prompt's KV has somewhere to go. Raises BadRequest, TooLarge, or
    EngineLost whose `blame` says which of the two was lost.
    """
    try:
        decode.link.start(decode.request)
        await asyncio.wait((published, decode.flight.ended), return_when=asyncio.FIRST_COMPLETED)
        if decode.flight.ended.done():
            return _checked(decode)
        prefill.link.start(prefill.request)
        await asyncio.wait((prefill.flight.ended, decode.flight.ended), return_when=asyncio.FIRST_COMPLETED)
        if decode.flight.ended.done() or _handed_over(prefill.flight) or stream.decoding:
            await asyncio.wait((decode.flight.ended,))
            return _checked(decode)
        return _checked(prefill, decode.link.key if stream.tokens else frozenset())
    finally:
        prefill.abandon()
        decode.abandon()


def _handed_over(first: Flight) -> bool:
    """Whether the prefill engine has done its part."""
    if first.ended.exception() is not None:
        return False
    end = first.ended.result()
    return end is not None and end[0] is Finish.HANDED_OVER


def _checked(side: Side, unreachable: Tried = frozenset()) -> tuple[Finish, Report] | None:
    """`unreachable`: whom to blame for a hand-over that this side has given up."""
    end = side.flight.ended.result()
    if end is not None and end[0] is Finish.KV_LOST:
        raise EngineLost(HAND_OVER_LOST, unreachable)
    if end is not None and end[0] in (Finish.CANCELLED, Finish.DRAINING):  # nobody here cancelled it
        raise EngineLost(f"engine {side.link.info.engine_id} ended the request: {end[0].name.lower()}", side.link.key)
    return end
