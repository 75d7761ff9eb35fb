"""Choosing one engine of a role: the first in an order that follows the engines' loads, or the next in turn."""

from collections.abc import Iterator
from typing import Protocol

from services.global_scheduler.policy.fleet import Member
from services.global_scheduler.policy.state import Request
from services.global_scheduler.policy.tournament import Key, Tournament


class Chooser(Protocol):
    """The live engines of one model and role. Whoever changes a member's load says so by `changed`."""

    def add(self, member: Member) -> None: ...

    def remove(self, member: Member) -> None: ...

    def changed(self, member: Member) -> None: ...

    def choose(self, request: Request) -> Member | None:
        """None: no engine may be given it now."""
        ...


class Rank(Protocol):
    def __call__(self, member: Member, held: int = 0) -> Key | None:
        """The engine's place in the order for a request of which it holds so many tokens. The key's last element is the
        engine's id; an engine without a key gets nothing. More held never makes it go later."""
        ...


def least_tokens(member: Member, held: int = 0) -> Key:
    """What it holds counts as less on it. Ties go to the engine with fewer requests, then to the smaller id, so that
    equal inputs are placed alike."""
    return member.tokens - held, member.requests, member.engine_id


class InOrder:
    """The first engine, by the key that `rank` gives it, that fits the request."""

    def __init__(self, rank: Rank = least_tokens) -> None:
        self._rank = rank
        self._order = Tournament()
        self._members: dict[str, Member] = {}

    def add(self, member: Member) -> None:
        self._members[member.engine_id] = member
        member.seat = self._order.enter()
        self.changed(member)

    def remove(self, member: Member) -> None:
        del self._members[member.engine_id]
        self._order.leave(member.seat)

    def changed(self, member: Member) -> None:
        self._order.set(member.seat, self._rank(member))

    def choose(self, request: Request) -> Member | None:
        first = next(self._fitting(request), None)
        if first is None or not request.held:
            return first
        best, best_key = first, self._rank(first, request.held_by(first.engine_id))
        for engine_id, _ in request.held:  # nobody else goes before the first of the order
            member = self._members.get(engine_id)
            if member is not None and member.fits(request):
                key = self._rank(member, request.held_by(engine_id))
                if key is not None and best_key is not None and key < best_key:
                    best, best_key = member, key
        return best

    def _fitting(self, request: Request) -> Iterator[Member]:
        for key in self._order.ascending():
            member = self._members[key[-1]]
            if member.fits(request):
                yield member


class InTurn:
    """Round robin in the order of joining, over those that the request fits."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._next = 0

    def add(self, member: Member) -> None:
        self._members.append(member)

    def remove(self, member: Member) -> None:
        index = self._members.index(member)
        del self._members[index]
        self._next -= index < self._next

    def changed(self, member: Member) -> None:
        """Loads are not looked at."""

    def choose(self, request: Request) -> Member | None:
        count = len(self._members)
        for index in range(self._next, self._next + count):
            member = self._members[index % count]
            if member.fits(request):
                self._next = (index + 1) % count
                return member
        return None
