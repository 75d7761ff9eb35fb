"""least_tokens against a reference that recounts everything for each request; and its refusals, by name."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.policy.state import (
    Decision,
    Engine,
    Held,
    Load,
    Placement,
    ReadPath,
    Refusal,
    RefusalReason,
    Request,
    Role,
)

MODELS = ["small", "big"]
Live = tuple[tuple[Engine, Load], ...]


def engine(engine_id: str, requests: int = 0, tokens: int = 0, **changes: object) -> tuple[Engine, Load]:
    values: dict[str, object] = {
        "group_id": "g",
        "node_id": "g",
        "role": Role.UNIFIED,
        "model": "small",
        "page_tokens": 64,
        "page_count": 16,
        "max_context": 1024,
    }
    made = Engine(engine_id=engine_id, **(values | changes))  # type: ignore[arg-type]
    return made, Load(requests, tokens, 0, made.page_count)


def place(live: Live, asked: Sequence[Request], models: Sequence[str] = MODELS, reuse: bool = False) -> list[Decision]:
    policy = LeastTokens(Parameters(local_reuse=reuse))
    for model in models:
        policy.know(model)
    for made, load in live:
        policy.add(made, load)
    for each in asked:
        policy.submit(each)
    decided = {decision.request_id: decision for decision in policy.decide()}
    assert policy.waiting == 0
    return [decided[each.request_id] for each in asked]


def request(name: str = "r", prompt: int = 10, new: int = 10, model: str = "small", exclude: str = "") -> Request:
    return Request(name, model, prompt, 0, new, frozenset(exclude.split()))


engines = st.builds(
    lambda names, drawn: tuple(
        engine(name, role=role, model=model, page_count=pages, max_context=context, requests=n, tokens=tokens)
        for name, (role, model, pages, context, n, tokens) in zip(names, drawn, strict=False)
    ),
    st.lists(st.sampled_from("abcdef"), unique=True, max_size=6),
    st.lists(
        st.tuples(
            st.sampled_from([Role.UNIFIED, Role.UNIFIED, Role.UNIFIED, Role.DECODE]),
            st.sampled_from(MODELS),
            st.integers(1, 16),
            st.integers(1, 1024),
            st.integers(0, 3),
            st.integers(0, 300),
        ),
        min_size=6,
        max_size=6,
    ),
)
requests = st.lists(
    st.builds(
        Request,
        st.uuids().map(str),
        st.sampled_from([*MODELS, "unknown"]),
        st.integers(1, 600),
        st.integers(0, 600),
        st.integers(0, 600),
        st.frozensets(st.sampled_from("abcdef"), max_size=2),
        st.lists(
            st.builds(Held, st.sampled_from("abcdefg"), st.integers(1, 600)), max_size=3, unique_by=lambda one: one[0]
        ).map(tuple),
    ),
    max_size=20,
)


def reference(live: Live, asked: Sequence[Request], reuse: bool) -> list[str]:
    """For each request, the chosen engine's id or the refusal's reason, from the rules as they are told."""
    answers: list[str] = []
    models = {e.model for e, _ in live}
    loads = {e.engine_id: load for e, load in live}
    for index, now in enumerate(asked):
        if now.model not in models:
            answers.append("unknown_model")
            continue
        alive = [e for e, _ in live if e.model == now.model and e.role is Role.UNIFIED]
        alive = [e for e in alive if e.engine_id not in now.exclude_engines]
        if not alive:
            answers.append("no_live_engine")
            continue
        written = now.prompt_tokens + now.max_tokens - (1 if now.max_tokens else 0)
        roomy = [e for e in alive if now.prompt_tokens + now.max_tokens <= e.max_context]
        roomy = [e for e in roomy if written <= e.page_count * e.page_tokens]
        before = list(zip(asked[:index], answers, strict=True))
        ranked = []
        for e in roomy:
            mine = [earlier.prompt_tokens for earlier, answer in before if answer == e.engine_id]
            load = loads[e.engine_id]
            held = min(dict(now.held).get(e.engine_id, 0), now.cached_tokens) if reuse else 0
            ranked.append((load.tokens + sum(mine) - held, load.requests + len(mine), e.engine_id))
        answers.append(sorted(ranked)[0][2] if ranked else "too_large")
    return answers


def told(decision: Decision) -> str:
    return decision.decode if isinstance(decision, Placement) else decision.reason.value


@given(engines, requests, st.booleans())
def test_equals_the_reference(live: Live, asked: list[Request], reuse: bool) -> None:
    decisions = place(live, asked, models=[], reuse=reuse)
    assert [told(decision) for decision in decisions] == reference(live, asked, reuse)
    for each, decision in zip(asked, decisions, strict=True):
        if isinstance(decision, Placement):
            assert decision.reused_tokens == (each.held_by(decision.prefill) if reuse else 0)
            assert decision.prefill_read_tokens + decision.reused_tokens == each.cached_tokens


@given(engines, requests)
def test_is_deterministic_and_blind_to_the_engines_order(live: Live, asked: list[Request]) -> None:
    assert place(tuple(reversed(live)), asked) == place(live, asked)


def test_a_unified_engine_is_both_ends_of_the_path() -> None:
    (decision,) = place((engine("a"),), [request()])
    assert decision == Placement("r", "a", "a", ReadPath.UNIFIED)


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        (request(model="nope"), RefusalReason.UNKNOWN_MODEL, "'nope'; served: big, small"),
        (request(model="big"), RefusalReason.NO_LIVE_ENGINE, "no live engine serves model 'big'"),
        (request(exclude="a"), RefusalReason.NO_LIVE_ENGINE, "beside those already tried (a)"),
        (request(prompt=1000, new=500), RefusalReason.TOO_LARGE, "prompt of 1000 and up to 500 new tokens"),
    ],
)
def test_refusals_name_the_bad_thing(asked: Request, reason: RefusalReason, words: str) -> None:
    (decision,) = place((engine("a"),), [asked])
    assert isinstance(decision, Refusal)
    assert decision.reason is reason
    assert words in decision.message


def test_a_refused_request_does_not_hold_up_those_behind_it() -> None:
    decisions = place((engine("a"),), [request("1", prompt=5000), request("2")])
    assert [told(decision) for decision in decisions] == ["too_large", "a"]


@pytest.mark.parametrize(("prompt", "new", "answer"), [(64, 1, "a"), (64, 2, "too_large"), (63, 2, "a"), (64, 0, "a")])
def test_the_last_token_needs_no_page(prompt: int, new: int, answer: str) -> None:
    assert told(place((engine("a", page_count=1),), [request(prompt=prompt, new=new)])[0]) == answer


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"'fastest' is not known; known: .*least_tokens"):
        make_policy("fastest")
