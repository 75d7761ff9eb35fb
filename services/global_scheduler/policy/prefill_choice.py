"""Which prefill engine takes the head of the queue (D10)."""

from services.global_scheduler.policy.choosers import InOrder, least_tokens
from services.global_scheduler.policy.fleet import Member, Node
from services.global_scheduler.policy.state import Request
from services.global_scheduler.policy.tournament import Key

SHORT, LONG = 0, 1


class PrefillChoice(InOrder):
    """D10: an engine with tok_e > beta is overloaded and gets nothing; those whose node's read_q <= alpha go before
    the rest, so that no storage NIC idles; among equals the smallest tok_e. None: stop this round.

    `reuse`: an engine of the better class there is that still holds some of the hit goes first, the most held first.
    """

    def __init__(self, alpha_tokens: float, beta_tokens: float, reuse: bool = False) -> None:
        super().__init__(self._classified)
        self._alpha = alpha_tokens
        self._beta = beta_tokens
        self._reuse = reuse
        self._watched: dict[Node, tuple[int, list[Member]]] = {}
        """A node's class, and its members here."""

    def add(self, member: Member) -> None:
        if member.node not in self._watched:
            self._watched[member.node] = (self._class(member.node), [])
            member.node.watchers.append(self)
        self._watched[member.node][1].append(member)
        super().add(member)

    def remove(self, member: Member) -> None:
        members = self._watched[member.node][1]
        members.remove(member)
        if not members:
            del self._watched[member.node]
            member.node.watchers.remove(self)
        super().remove(member)

    def read_queue_changed(self, node: Node) -> None:
        before, members = self._watched[node]
        if (now := self._class(node)) != before:
            self._watched[node] = now, members
            for member in members:
                self.changed(member)

    def choose(self, request: Request) -> Member | None:
        first = super().choose(request)
        if first is None or not self._reuse or not request.held:
            return first
        holders = (self._members.get(held.engine_id) for held in request.held)
        able = [member for member in holders if member and self._equals(first, member) and member.fits(request)]
        return min([first, *able], key=lambda member: (-request.held_by(member.engine_id), least_tokens(member)))

    def _equals(self, first: Member, member: Member) -> bool:
        """In the class of the one that would be chosen."""
        return member.tokens <= self._beta and self._class(member.node) == self._class(first.node)

    def _class(self, node: Node) -> int:
        return SHORT if node.read_queue_tokens <= self._alpha else LONG

    def _classified(self, member: Member) -> Key | None:
        if member.tokens > self._beta:
            return None
        return self._class(member.node), member.tokens, member.requests, member.engine_id
