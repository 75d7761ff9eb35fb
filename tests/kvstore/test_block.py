"""Headers: what was written comes back, and no changed bit goes unnoticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.block import HEADER_BYTES, BadBlock, Block, decode_header, encode_header


def test_round_trip(tools) -> None:
    for block in tools.chain(3):
        header = encode_header(block, 0xDEADBEEF)
        assert len(header) == HEADER_BYTES
        assert decode_header(header) == (block, 0xDEADBEEF)
        assert block.fault() == ""


def test_a_changed_bit_is_seen(tools) -> None:
    header = encode_header(tools.chain(1)[0], 1)

    @given(st.integers(0, 8 * HEADER_BYTES - 1))
    def flip(bit: int) -> None:
        changed = bytearray(header)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBlock):
            decode_header(bytes(changed))

    flip()


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES + 1])
def test_a_cut_header_is_bad(tools, length: int) -> None:
    header = encode_header(tools.chain(1)[0], 1) + b"\0"
    with pytest.raises(BadBlock):
        decode_header(header[:length])


def test_a_key_that_is_not_its_contents_is_bad(tools) -> None:
    one, two = tools.chain(2)
    lie = Block(two.key, one.parent, 0, two.length, two.tokens)
    assert "key" in lie.fault()
    with pytest.raises(BadBlock, match="key"):
        decode_header(encode_header(lie, 0))
