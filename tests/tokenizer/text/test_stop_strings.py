import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from services.tokenizer.stop_strings import StopMatcher, StopStrings

LETTERS = st.text(alphabet="ab]^-\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab]^-\n", min_size=1, max_size=5), min_size=1, max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """One character at a time: at the first that completes a stop string, cut before the longest completed."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


def held_back(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


def pieces(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=8))
@example("abab", ["abb"], [1, 2, 3])
@example("aab", ["ab", "aab"], [])
@example("xabcx", ["abcd", "c"], [2])
def test_equals_the_reference_however_the_text_is_split(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    sent, seen = "", ""
    for piece in pieces(text, cuts):
        sent += matcher.push(piece)
        seen += piece
        if matcher.stopped:
            break
        assert len(seen) - len(sent) == held_back(seen, stops)  # nothing is held back without need
    else:
        sent += matcher.finish()
    assert (sent, matcher.stopped) == reference(text, stops)


def test_long_stop_strings_take_linear_time() -> None:
    """Counted in automaton steps, not seconds: a text made of near misses."""
    steps = 0

    class Counting(StopStrings):
        def step(self, state: int, letter: str) -> int:
            nonlocal steps
            while letter not in self.next[state]:
                steps += 1
                if not state:
                    return 0
                state = self.fail[state]
            steps += 1
            return self.next[state][letter]

    matcher = StopMatcher(Counting(["a" * 500 + "b"]))
    text = ("a" * 499 + "c") * 40
    assert "".join([*(matcher.push(letter) for letter in text), matcher.finish()]) == text
    assert steps <= 3 * len(text)
