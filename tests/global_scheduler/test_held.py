"""Who holds which blocks: against a reference that keeps every chain whole."""

from hypothesis import given
from hypothesis import strategies as st

from services.common.keys import BLOCK_TOKENS, MARK_BYTES, MARKS, marked, marks
from services.global_scheduler import held
from services.global_scheduler.held import HeldIndex
from services.global_scheduler.policy.state import Held

ENGINES = ["a", "b", "c"]


def chain(name: int, blocks: int) -> list[bytes]:
    return [bytes([name]) * 2 + block.to_bytes(14, "big")[::-1] for block in range(blocks)]


def test_marked_prefixes_are_spread_evenly_and_end_with_the_whole() -> None:
    assert marked(0) == []
    assert marked(1) == [1]
    assert marked(MARKS) == list(range(1, MARKS + 1))
    for blocks in range(1, 200):
        lengths = marked(blocks)
        assert lengths[-1] == blocks
        gaps = [b - a for a, b in zip([0, *lengths], lengths, strict=False)]
        assert min(gaps) > 0
        assert max(gaps) - min(gaps) <= 1
        assert len(marks(chain(0, blocks))) == MARK_BYTES * len(lengths)


tellings = st.lists(
    st.tuples(st.sampled_from(ENGINES), st.integers(0, 2), st.integers(0, 40), st.booleans()), max_size=12
)


@given(tellings, st.integers(0, 2), st.integers(0, 60))
def test_as_the_reference(told: list[tuple[str, int, int, bool]], name: int, blocks: int) -> None:
    index = HeldIndex()
    holds = {engine: [0, 0, 0] for engine in ENGINES}  # blocks of each chain
    for engine, which, length, forgets in told:
        if forgets:
            index.forget(engine)
            holds[engine] = [0, 0, 0]
        before = set(chain(which, holds[engine][which]))
        now = set(chain(which, length))
        index.hear(engine, b"".join(k[:8] for k in now - before), b"".join(k[:8] for k in before - now))
        holds[engine][which] = length
        index.check()
    found = index.of(marks(chain(name, blocks)), blocks * BLOCK_TOKENS)
    right = {}
    for engine in ENGINES:
        lengths = [length for length in marked(blocks) if length <= holds[engine][name]]
        if lengths:
            right[engine] = lengths[-1] * BLOCK_TOKENS
    assert dict(found) == right
    assert [one.tokens for one in found] == sorted((one.tokens for one in found), reverse=True)


def test_marks_of_another_length_tell_nothing() -> None:
    index = HeldIndex()
    index.hear("a", marks(chain(0, 5)), b"")
    assert index.of(marks(chain(0, 5)), 5 * BLOCK_TOKENS) == (Held("a", 5 * BLOCK_TOKENS),)
    assert index.of(marks(chain(0, 5)), 6 * BLOCK_TOKENS) == ()
    assert index.of(b"", 5 * BLOCK_TOKENS) == ()
    assert index.of(b"", 0) == ()


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(held, "MOST_MARKS", 3)
    monkeypatch.setattr(held, "HOLDERS", 2)
    index = HeldIndex()
    for engine in ENGINES:
        index.hear(engine, marks(chain(0, 5)), b"")
    index.check()
    assert index.of(marks(chain(0, 3)), 3 * BLOCK_TOKENS) == (Held("a", 192), Held("b", 192))
    assert index.of(marks(chain(0, 5)), 5 * BLOCK_TOKENS) == (Held("a", 192), Held("b", 192))
    for engine in ENGINES:
        index.forget(engine)
        index.forget(engine)
    index.check()
    assert not index._holders


def test_so_it_is_of_all_engines_and_what_is_forgotten_makes_room(monkeypatch) -> None:
    monkeypatch.setattr(held, "MOST_MARKS_IN_ALL", 3)
    index = HeldIndex()
    index.hear("a", marks(chain(0, 2)), b"")
    index.hear("b", marks(chain(0, 2)), b"")
    index.check()
    assert (index.count("a"), index.count("b")) == (2, 1)
    index.forget("a")
    index.hear("b", marks(chain(0, 2)), b"")
    index.check()
    assert index.count("b") == 2
