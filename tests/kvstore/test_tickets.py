"""The write buffer: places never overlap, and all of it comes back."""

from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.tickets import GRANULE, Slab, Tickets


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * GRANULE), st.randoms(use_true_random=False)), max_size=60))
def test_slab_against_a_list_of_granules(steps) -> None:
    slab, taken, owner = Slab(16 * GRANULE + 5), [], [0] * 16
    for number, (take, size, random) in enumerate(steps, 1):
        need = -(-size // GRANULE)
        if take:
            gaps = [at for at in range(17 - need) if not any(owner[at : at + need])]
            offset = slab.take(size)
            assert offset == (gaps[0] * GRANULE if gaps else None)
            if offset is not None:
                taken.append((offset, size))
                owner[gaps[0] : gaps[0] + need] = [number] * need
        elif taken:
            offset, size = taken.pop(random.randrange(len(taken)))
            slab.give(offset, size)
            begin, need = offset // GRANULE, -(-size // GRANULE)
            owner[begin : begin + need] = [0] * need
        assert slab.free == owner.count(0) * GRANULE
    for place in taken:
        slab.give(*place)
    assert slab.take(slab.size) == 0


def test_a_ticket_being_committed_neither_expires_nor_aborts_nor_commits_twice(tools) -> None:
    slab = Slab(4 * GRANULE)
    tickets = Tickets(slab, 1)
    first, second = (tickets.open(block, b"", ends=10.0) for block in tools.chain(2))
    assert tickets.commit(first.id, now=9.0) is first
    assert tickets.commit(first.id, now=9.0) is None
    assert tickets.commit(second.id, now=10.0) is None
    assert tickets.expired(11.0) == [second]
    assert tickets.abortable([first.id, second.id, 77]) == [second]
    tickets.close(first)
    tickets.close(second)
    assert (len(tickets), slab.free) == (0, slab.size)
    assert not tickets.writing(first.block.key)
