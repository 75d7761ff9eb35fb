"""The engines and the queue of one model: from arrival to placement (D9-D12)."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from services.global_scheduler.policy.choosers import Chooser
from services.global_scheduler.policy.decode_choice import DecodeStage, Waiting
from services.global_scheduler.policy.fleet import Member
from services.global_scheduler.policy.read_path import PathChoice
from services.global_scheduler.policy.roster import Roster, no_live_engine
from services.global_scheduler.policy.state import Decision, Placement, ReadPath, Refusal, Request, Role


@dataclass(frozen=True, slots=True)
class Choices:
    """What makes one policy differ from another."""

    unified: Chooser
    prefill: Chooser
    decode: DecodeStage
    path: PathChoice


class Pool:
    """Two stages. First come, first served, the head of the queue gets a prefill engine, which holds it; then it
    waits in a group of decode engines. While no prefill or decode engine can hold it, unified ones serve at once."""

    def __init__(self, choices: Choices) -> None:
        self._prefill, self._decode, self._path = choices.prefill, choices.decode, choices.path
        self._unified = choices.unified
        self._stages: dict[Role, Chooser | DecodeStage] = {
            Role.UNIFIED: choices.unified,
            Role.PREFILL: choices.prefill,
            Role.DECODE: choices.decode,
        }
        self._rosters = {role: Roster() for role in Role}
        self._queue: OrderedDict[str, Waiting] = OrderedDict()

    def add(self, member: Member) -> None:
        self._rosters[member.engine.role].add(member)
        self._stages[member.engine.role].add(member)

    def remove(self, member: Member) -> None:
        """All that wait are looked at anew: an engine that was to serve them is gone, or the only large one."""
        self._restart()
        self._rosters[member.engine.role].remove(member)
        self._stages[member.engine.role].remove(member)

    def changed(self, member: Member) -> None:
        self._stages[member.engine.role].changed(member)

    def put(self, waiting: Waiting) -> None:
        self._queue[waiting.request.request_id] = waiting

    def withdraw(self, waiting: Waiting) -> None:
        if waiting.prefill is None:
            del self._queue[waiting.request.request_id]
        else:
            self._decode.withdraw(waiting)
            self._take_back(waiting)

    def decide(self) -> Iterator[Decision]:
        """One round."""
        if not (self._rosters[Role.PREFILL] and self._rosters[Role.DECODE]):
            self._restart()
            while self._queue:
                yield self._on_unified(self._queue.popitem(last=False)[1].request)
            return
        while self._queue:
            waiting = next(iter(self._queue.values()))
            if refusal := self._refusal(waiting.request):
                yield self._on_unified(waiting.request) if self._rosters[Role.UNIFIED] else refusal
            elif not self._to_prefill(waiting):
                break
            self._queue.popitem(last=False)
        placed = sorted(self._decode.assign(), key=lambda pair: pair[0].order)
        for waiting, decode in placed:  # paths are chosen in the order of arrival, whatever the groups' order
            yield self._placement(waiting, decode)

    def _on_unified(self, request: Request) -> Decision:
        member = self._unified.choose(request)
        if member is None:
            return self._rosters[Role.UNIFIED].refusal(request) or no_live_engine(request)
        member.place(request)
        engine_id, held = member.engine_id, request.held_by(member.engine_id)
        reads = request.cached_tokens - held
        member.read(reads)
        self._unified.changed(member)
        return Placement(request.request_id, engine_id, engine_id, ReadPath.UNIFIED, reads, 0, held)

    def _refusal(self, request: Request) -> Refusal | None:
        prefill, decode = self._rosters[Role.PREFILL], self._rosters[Role.DECODE]
        return prefill.refusal(request) or decode.refusal(request)

    def _to_prefill(self, waiting: Waiting) -> bool:
        member = self._prefill.choose(waiting.request)
        if member is None:
            return False
        waiting.prefill = member
        member.hold(waiting.request)
        self._prefill.changed(member)
        self._decode.put(waiting)
        return True

    def _placement(self, waiting: Waiting, decode: Member) -> Placement:
        request, prefill = waiting.request, waiting.prefill
        assert prefill is not None, "a decode engine comes second"
        prefill.release(request)
        path, prefill_tokens, decode_tokens, reused_tokens = self._path(request, prefill, decode)
        if prefill_tokens:
            prefill.read(prefill_tokens)
        if decode_tokens:
            decode.read(decode_tokens)
        return Placement(
            request.request_id, prefill.engine_id, decode.engine_id, path, prefill_tokens, decode_tokens, reused_tokens
        )

    def _take_back(self, waiting: Waiting) -> None:
        if waiting.prefill:
            waiting.prefill.take_back(waiting.request)
            self._prefill.changed(waiting.prefill)
            waiting.prefill = None

    def _restart(self) -> None:
        """Those that wait for a decode engine go back to the queue, which is in the order of arrival again."""
        if taken := self._decode.take_all():
            for waiting in taken:
                self._take_back(waiting)
            everyone = sorted([*taken, *self._queue.values()], key=lambda waiting: waiting.order)
            self._queue = OrderedDict((waiting.request.request_id, waiting) for waiting in everyone)
