"""Which engines of a role there are, by what they could hold; and the words for a request that none could."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from services.global_scheduler.policy.fleet import Member
from services.global_scheduler.policy.state import Refusal, RefusalReason, Request


class Shape(NamedTuple):
    """What bounds the requests that an engine could hold, in tokens."""

    context: int
    kv_memory: int
    longest_prompt: int


class Roster:
    """Engines are many, their shapes few: so whether any could hold a request doesn't cost a look at each."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._shapes: Counter[Shape] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        self._members[member.engine_id] = member
        self._shapes[_shape(member)] += 1

    def remove(self, member: Member) -> None:
        del self._members[member.engine_id]
        shape = _shape(member)
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]

    def refusal(self, request: Request) -> Refusal | None:
        """None if an engine could hold the request if it had nothing else to do."""
        shapes: Iterable[Shape] = self._shapes
        if request.exclude_engines:
            members = self._members.values()
            left = [member for member in members if member.engine_id not in request.exclude_engines]
            shapes = [_shape(member) for member in left]
        if not shapes:
            return no_live_engine(request)
        whole, written = request.prompt_tokens + request.max_tokens, request.kv_tokens
        roomy = [shape for shape in shapes if whole <= shape.context and written <= shape.kv_memory]
        if any(request.prompt_tokens <= shape.longest_prompt for shape in roomy):
            return None
        if roomy:
            longest = max(shape.longest_prompt for shape in roomy)
            message = (
                f"the prompt has {request.prompt_tokens} tokens; decode engines of model {request.model!r} take over "
                f"prompts of up to {longest}, which is what their memory for them holds (--receive-buffer-bytes)"
            )
        else:
            message = (
                f"prompt of {request.prompt_tokens} and up to {request.max_tokens} new tokens fit no engine of model "
                f"{request.model!r}: the longest context is {max(shape.context for shape in shapes)} tokens, the "
                f"largest KV memory {max(shape.kv_memory for shape in shapes)}"
            )
        return Refusal(request.request_id, RefusalReason.TOO_LARGE, message)


def _shape(member: Member) -> Shape:
    return Shape(member.max_context, member.capacity_tokens, member.longest_prompt)


def no_live_engine(request: Request) -> Refusal:
    message = f"no live engine serves model {request.model!r}"
    if request.exclude_engines:
        message += f" beside those already tried ({', '.join(sorted(request.exclude_engines))})"
    return Refusal(request.request_id, RefusalReason.NO_LIVE_ENGINE, message + "; try again")


def unknown_model(request: Request, models: Iterable[str]) -> Refusal:
    known = ", ".join(sorted(models)) or "none yet"
    message = f"no engine serves model {request.model!r}; served: {known}"
    return Refusal(request.request_id, RefusalReason.UNKNOWN_MODEL, message)
