"""Which decode engine takes a request: first a group, then an engine in it (D11)."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from services.global_scheduler.policy.choosers import Chooser
from services.global_scheduler.policy.fleet import Member
from services.global_scheduler.policy.state import Request
from services.global_scheduler.policy.tournament import Tournament


class Waiting:
    """A request between `submit` and its placement."""

    __slots__ = ("group", "order", "prefill", "request")

    def __init__(self, order: int, request: Request) -> None:
        self.order = order  # of arrival
        self.request = request
        self.prefill: Member | None = None  # holds it, once chosen
        self.group: Group | None = None  # in whose queue it is, once chosen


class DecodeStage(Protocol):
    """Takes requests in, gives them out with an engine on which they are placed."""

    def add(self, member: Member) -> None: ...

    def remove(self, member: Member) -> None: ...

    def changed(self, member: Member) -> None: ...

    def put(self, waiting: Waiting) -> None:
        """At least one engine here fits it."""
        ...

    def withdraw(self, waiting: Waiting) -> None: ...

    def take_all(self) -> list[Waiting]:
        """Those that wait, which wait here no more."""
        ...

    def assign(self) -> Iterator[tuple[Waiting, Member]]: ...


class AtOnce:
    """No queue: each request goes where the chooser says, whatever HBM is free."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._put: list[Waiting] = []  # empty between rounds
        self.add, self.remove, self.changed = chooser.add, chooser.remove, chooser.changed

    def put(self, waiting: Waiting) -> None:
        self._put.append(waiting)

    def withdraw(self, waiting: Waiting) -> None:
        self._put.remove(waiting)

    def take_all(self) -> list[Waiting]:
        put, self._put = self._put, []
        return put

    def assign(self) -> Iterator[tuple[Waiting, Member]]:
        for waiting in self.take_all():
            member = self._chooser.choose(waiting.request)
            assert member is not None, f"request {waiting.request.request_id!r} fits no decode engine"
            member.place(waiting.request)
            self._chooser.changed(member)
            yield waiting, member


class Group:
    """The decode engines of one leader (D9), and the requests that wait for one of them."""

    __slots__ = ("group_id", "members", "queue", "queued_tokens", "seat", "tokens")

    def __init__(self, group_id: str, seat: int) -> None:
        self.group_id = group_id
        self.seat = seat
        self.members: dict[str, Member] = {}
        self.tokens = 0  # sum of the members'
        self.queue: OrderedDict[str, Waiting] = OrderedDict()
        self.queued_tokens = 0


class DecodeChoice:
    """D11. Across groups: the group with the fewest tokens, its queue's included. Inside, in the queue's order:
    R = the requests for which the group's free HBM would do; Z = 1.05 (sum of len_r over R + sum of tok_e over
    E) / |E|; among the engines with room that the request keeps at or under Z the smallest seq_e, else the smallest
    tok_e. The first request for which no engine has room ends the group's round: so a large one can't starve, and
    only its group waits for it ("not globally FIFO").

    The most that an engine of a group holds of the hit counts as so much less on the group; and inside, among the
    engines at or under Z, those that hold most go before the smallest seq_e.
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._groups: dict[str, Group] = {}
        self._order = Tournament()
        self._open: dict[Group, None] = {}  # groups whose queue or members changed since their last round, in order

    def add(self, member: Member) -> None:
        group_id = member.engine.group_id
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._order.enter())
        self._members[member.engine_id] = group.members[member.engine_id] = member
        member.counted_tokens = 0
        self.changed(member)

    def remove(self, member: Member) -> None:
        """The caller has taken all waiting requests before."""
        group = self._groups[member.engine.group_id]
        assert not group.queue, f"requests wait for group {group.group_id!r} while it loses an engine"
        del self._members[member.engine_id], group.members[member.engine_id]
        self._count(group, -member.counted_tokens)
        if not group.members:
            del self._groups[group.group_id]
            self._order.leave(group.seat)

    def changed(self, member: Member) -> None:
        group = self._groups[member.engine.group_id]
        change = member.tokens - member.counted_tokens
        member.counted_tokens = member.tokens
        self._count(group, change)
        if group.queue:
            self._open[group] = None

    def put(self, waiting: Waiting) -> None:
        group = self._group(waiting.request)
        waiting.group = group
        group.queue[waiting.request.request_id] = waiting
        self._count(group, 0, waiting.request.prompt_tokens)
        self._open[group] = None

    def withdraw(self, waiting: Waiting) -> None:
        group = waiting.group
        assert group is not None, "it waits in a group's queue"
        waiting.group = None
        del group.queue[waiting.request.request_id]
        self._count(group, 0, -waiting.request.prompt_tokens)
        if group.queue:
            self._open[group] = None  # the one behind it may have room

    def take_all(self) -> list[Waiting]:
        taken = [waiting for group in self._groups.values() for waiting in group.queue.values()]
        for waiting in taken:
            self.withdraw(waiting)
        self._open.clear()
        return taken

    def assign(self) -> Iterator[tuple[Waiting, Member]]:
        opened, self._open = self._open, {}
        for group in opened:
            yield from self._round(group)
            self._open.pop(group, None)  # it has seen its own changes

    def _round(self, group: Group) -> Iterator[tuple[Waiting, Member]]:
        members = list(group.members.values())
        reach, high = self._reach(group, members)
        for waiting in reach:
            member = self._inside(members, waiting.request, high)
            if member is None:
                return
            self.withdraw(waiting)
            member.place(waiting.request)
            self.changed(member)
            yield waiting, member

    def _reach(self, group: Group, members: list[Member]) -> tuple[list[Waiting], int]:
        """R, and Z times 100 |E|, which is whole."""
        free = sum(member.free_tokens for member in members if member.free_tokens > 0)
        tokens = group.tokens
        reach = []
        for waiting in group.queue.values():
            free -= waiting.request.prompt_tokens + 1
            if free < 0:
                break
            reach.append(waiting)
            tokens += waiting.request.prompt_tokens
        return reach, 105 * tokens

    def _inside(self, members: list[Member], request: Request, high: int) -> Member | None:
        scale, length = 100 * len(members), request.prompt_tokens
        low: tuple[tuple[int, int, int, str], Member] | None = None
        rest: tuple[tuple[int, int, str], Member] | None = None
        for member in members:
            if member.free_tokens <= length or not member.fits(request):
                continue
            if (member.tokens + length) * scale <= high:
                held = request.held_by(member.engine_id)
                key = (-held, member.requests, member.tokens, member.engine_id)
                if low is None or key < low[0]:
                    low = key, member
            elif low is None:
                other = (member.tokens, member.requests, member.engine_id)
                if rest is None or other < rest[0]:
                    rest = other, member
        best = low or rest
        return best[1] if best else None

    def _group(self, request: Request) -> Group:
        best = self._emptiest(request)
        best_key = self._load(best, 0)
        for held in request.held:  # no other group goes before the emptiest
            member = self._members.get(held.engine_id)
            if member is not None and member.fits(request):
                group = self._groups[member.engine.group_id]
                key = self._load(group, request.held_by(held.engine_id))
                if key < best_key:
                    best, best_key = group, key
        return best

    def _emptiest(self, request: Request) -> Group:
        for key in self._order.ascending():
            group = self._groups[key[-1]]
            if any(member.fits(request) for member in group.members.values()):
                return group
        raise AssertionError(f"request {request.request_id!r} fits no decode engine")

    def _load(self, group: Group, held: int) -> tuple[int, str]:
        return group.tokens + group.queued_tokens - held, group.group_id

    def _count(self, group: Group, change: int, queued: int = 0) -> None:
        group.tokens += change
        group.queued_tokens += queued
        self._order.set(group.seat, self._load(group, 0))
