"""One stream of two engines' tokens."""

from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.two_engines import OneStream


@given(st.data())
def test_each_token_is_taken_once_and_in_order_whoever_is_read_first(data: st.DataObject) -> None:
    tokens = list(range(100, 100 + data.draw(st.integers(1, 12), "tokens")))
    taken: list[int] = []
    stops: list[bool] = []

    def take(ids: list[int], stop_token_last: bool) -> None:
        assert ids
        taken.extend(ids)
        stops.append(stop_token_last)

    stream = OneStream(take)
    prefill, decode = stream.of_engine(), stream.of_engine()
    when = data.draw(st.integers(0, len(tokens)), "reads of the decode engine before the prefill engine's")
    told = reads = 0
    while told < len(tokens) or reads <= when:
        if reads == when:
            prefill(tokens[:1], False)
        reads += 1
        count = data.draw(st.integers(0, len(tokens) - told), "tokens of a read")
        if count:
            decode(tokens[told : told + count], told + count == len(tokens))
        elif reads > 40:
            decode(tokens[told:], True) if told < len(tokens) else None
            count = len(tokens) - told
        told += count
    assert taken == tokens
    assert stream.tokens == len(tokens)
    assert stream.decoding is (len(tokens) > 1)
