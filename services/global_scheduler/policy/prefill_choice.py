"""Which prefill engine takes the head of the queue (D10)."""

from services.global_scheduler.policy.choosers import InOrder, least_tokens
from services.global_scheduler.policy.fleet import Member, Node
from services.global_scheduler.policy.tournament import Key

SHORT, LONG = 0, 1


class PrefillChoice(InOrder):
    """D10: an engine with tok_e > beta is overloaded and gets nothing; those whose node's read_q <= alpha go before
    the rest, so that no storage NIC idles; among equals the smallest tok_e. None: stop this round.

    What an engine holds of the hit counts as so much less in read_q and tok_e; it is overloaded all the same.
    """

    def __init__(self, alpha_tokens: float, beta_tokens: float) -> None:
        super().__init__(self._classified)
        self._alpha = alpha_tokens
        self._beta = beta_tokens
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

    def _class(self, node: Node, held: int = 0) -> int:
        return SHORT if node.read_queue_tokens - held <= self._alpha else LONG

    def _classified(self, member: Member, held: int = 0) -> Key | None:
        if member.tokens > self._beta:
            return None
        return self._class(member.node, held), *least_tokens(member, held)
