"""Which engines of a role there are, by what they could hold; and the words for a request that none could."""

from collections import Counter
from collections.abc import Iterable

from services.global_scheduler.policy.fleet import Member
from services.global_scheduler.policy.state import Refusal, RefusalReason, Request


class Roster:
    """Engines are many, their shapes few: so whether any could hold a request doesn't cost a look at each."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._shapes: Counter[tuple[int, int]] = Counter()  # (longest context, KV memory in tokens)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        self._members[member.engine_id] = member
        self._shapes[member.max_context, member.capacity_tokens] += 1

    def remove(self, member: Member) -> None:
        del self._members[member.engine_id]
        shape = member.max_context, member.capacity_tokens
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]

    def refusal(self, request: Request) -> Refusal | None:
        """None if an engine could hold the request if it had nothing else to do."""
        shapes: Iterable[tuple[int, int]] = self._shapes
        if request.exclude_engines:
            members = self._members.values()
            left = [member for member in members if member.engine_id not in request.exclude_engines]
            shapes = [(member.max_context, member.capacity_tokens) for member in left]
        if not shapes:
            return no_live_engine(request)
        whole, written = request.prompt_tokens + request.max_tokens, request.kv_tokens
        if any(whole <= context and written <= tokens for context, tokens in shapes):
            return None
        message = (
            f"prompt of {request.prompt_tokens} and up to {request.max_tokens} new tokens fit no engine of model "
            f"{request.model!r}: the longest context is {max(context for context, _ in shapes)} tokens, the largest "
            f"KV memory {max(tokens for _, tokens in shapes)}"
        )
        return Refusal(request.request_id, RefusalReason.TOO_LARGE, message)


def no_live_engine(request: Request) -> Refusal:
    message = f"no live engine serves model {request.model!r}"
    if request.exclude_engines:
        message += f" beside those already tried ({', '.join(sorted(request.exclude_engines))})"
    return Refusal(request.request_id, RefusalReason.NO_LIVE_ENGINE, message + "; try again")


def unknown_model(request: Request, models: Iterable[str]) -> Refusal:
    known = ", ".join(sorted(models)) or "none yet"
    message = f"no engine serves model {request.model!r}; served: {known}"
    return Refusal(request.request_id, RefusalReason.UNKNOWN_MODEL, message)
