"""parse_json: bounds on what a body may hold, whatever its strings look like."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway import body
from services.gateway.body import MAX_CONTAINERS, parse_json
from services.gateway.errors import ApiError


@pytest.mark.parametrize("item", [b"[]", b"{}", b'{"[": "]"}'])
def test_too_many_containers(item: bytes) -> None:
    with pytest.raises(ApiError, match="more than 100000 arrays and objects"):
        parse_json(b'{"x": [' + b",".join([item] * MAX_CONTAINERS) + b"]}")


@pytest.mark.parametrize("text", ["[" * 200_000, '{"' * 100_000, '\\"[' * 100_000, "\\" * 7 + "[" * 200_000])
def test_brackets_in_strings_do_not_count(text: str) -> None:
    assert parse_json(json.dumps({"prompt": text, "x": []}).encode()) == {"prompt": text, "x": []}


def test_a_string_without_an_end_is_looked_at_once() -> None:
    """Looking on from each of its quotes would take hours."""
    with pytest.raises(ApiError):
        parse_json(b'{"x": ' + b"[" * (MAX_CONTAINERS + 1) + b'"' + b'\\"' * 1_000_000)
    with pytest.raises(ApiError, match="not JSON"):
        parse_json(b'{"x": "' + b"[" * (MAX_CONTAINERS + 1) + b'\\"' * 1_000_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[{"}]\\a'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[{"}]\\a'), inner),
)


@given(st.dictionaries(st.text('[{"}]\\a'), JSON), st.integers(1, 20))
def test_counts_what_the_value_holds(value: dict[str, object], most: int) -> None:
    def containers(one: object) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        return isinstance(one, dict | list) + sum(map(containers, inner))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "MAX_CONTAINERS", most)
        if containers(value) > most:
            with pytest.raises(ApiError, match="arrays and objects"):
                parse_json(json.dumps(value).encode())
        else:
            assert parse_json(json.dumps(value).encode()) == value
