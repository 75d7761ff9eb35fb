"""Stop strings in streamed text: an Aho-Corasick automaton, so linear in the text however it is split.

The state after a character is the longest end of the text that begins some stop string. Exactly that
end is held back; all before it can be sent. The first character that completes a stop string ends the
text; of several completed by it, the longest counts.
"""

import re
from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of one request's stop strings (none of them empty). Immutable, shared by its choices."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.fail = [0]
        self.match = [0]
        """Length of the longest stop string that ends in this state; 0 for none."""
        for stop in stops:
            self._add(stop)
        self._link()
        self.first = re.compile("[" + "".join(re.escape(letter) for letter in self.next[0]) + "]")

    def _add(self, stop: str) -> None:
        state = 0
        for letter in stop:
            if letter not in self.next[state]:
                self.next[state][letter] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.fail.append(0)
                self.match.append(0)
            state = self.next[state][letter]
        self.match[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            self.match[state] = self.match[state] or self.match[self.fail[state]]
            for letter, child in self.next[state].items():
                self.fail[child] = self.step(self.fail[state], letter)
                queue.append(child)

    def step(self, state: int, letter: str) -> int:
        while letter not in self.next[state]:
            if not state:
                return 0
            state = self.fail[state]
        return self.next[state][letter]


class StopMatcher:
    """One stream's state: what is held back."""

    __slots__ = ("_held", "_state", "_stops", "stopped")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What can be sent now. Once `stopped`, that was all: the stop string and what follows is dropped."""
        stops, state, at, end = self._stops, self._state, 0, len(text)
        if not state and stops.first.search(text) is None:  # nearly always
            return text
        while at < end:
            if not state:  # nothing held back: leap to the next character that begins a stop string
                found = stops.first.search(text, at)
                if found is None:
                    break
                at = found.start()
            state = stops.step(state, text[at])
            at += 1
            if stops.match[state]:
                self.stopped = True
                return (self._held + text[:at])[: -stops.match[state]]
        self._state = state
        text = self._held + text
        keep = len(text) - stops.depth[state]
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back and turned out not to be a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
