"""What each policy adds: baselines, one queue for all, unified engines beside the others, what is still held."""

import itertools

import pytest

from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.registry import POLICIES, make_policy
from services.global_scheduler.policy.state import (
    Decision,
    Engine,
    Held,
    Load,
    Placement,
    Policy,
    ReadPath,
    Refusal,
    RefusalReason,
    Request,
    Role,
)

PAGES = 100


def join(
    policy: Policy, role: Role, engine_id: str, group: str = "", reads: int = 0, tokens: int = 0, **more: int
) -> None:
    group = group or engine_id
    free = more.get("free_pages", PAGES)
    engine = Engine(engine_id, group, group, role, "m", 64, PAGES, PAGES * 64, more.get("receives", 0))
    policy.add(engine, Load(0, tokens, reads, free))


def mesh(name: str, prefill: int = 2, decode: int = 2, **parameters: int) -> Policy:
    policy = make_policy(name, Parameters(**parameters))
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        for index in range(count):
            join(policy, role, f"{role.value[0]}{index}")
    return policy


def request(name: str = "r", prompt: int = 640, hit: int = 0, held: tuple[Held, ...] = ()) -> Request:
    return Request(name, "m", prompt, hit, 64, held=held)


def place(policy: Policy, *requests: Request) -> list[Decision]:
    for each in requests:
        policy.submit(each)
    return policy.decide()


def placed(policy: Policy, *requests: Request) -> list[Placement]:
    decisions = place(policy, *requests)
    assert len(decisions) == len(requests)
    return [decision for decision in decisions if isinstance(decision, Placement)]


def reads(count: int) -> list[Request]:
    return [request(str(index), hit=576) for index in range(count)]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_hit_is_read_once_whoever_reads_it(name: str) -> None:
    for split, reuse in itertools.product([False, True], repeat=2):
        policy = make_policy(name, Parameters(split_reads=split, local_reuse=reuse))
        for role in (Role.PREFILL, Role.DECODE):
            join(policy, role, f"{role.value}1")
            join(policy, role, f"{role.value}2", reads=100)
        held = (Held("decode1", 64), Held("prefill2", 320))
        for each in placed(policy, *[request(str(i), hit=i * 64, held=held) for i in range(10)]):
            assert each.prefill_read_tokens + each.decode_read_tokens + each.reused_tokens == int(each.request_id) * 64
            if each.path is not ReadPath.SPLIT:
                other = each.decode_read_tokens if each.path is ReadPath.PREFILL else each.prefill_read_tokens
                assert other == 0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_prompt_goes_to_a_decode_engine_that_can_take_it_over(name: str) -> None:
    policy = make_policy(name, Parameters())
    join(policy, Role.PREFILL, "p", receives=64)  # of no account there
    join(policy, Role.DECODE, "d0", receives=640)
    join(policy, Role.DECODE, "d1", receives=704)
    assert {d.decode for d in placed(policy, *[request(str(i), 641) for i in range(4)])} == {"d1"}
    (refused,) = place(policy, request("longer", 705))
    assert isinstance(refused, Refusal)
    assert refused.reason is RefusalReason.TOO_LARGE
    assert "has 705 tokens" in refused.message
    assert "up to 704" in refused.message
    assert "--receive-buffer-bytes" in refused.message
    join(policy, Role.UNIFIED, "u", receives=64)
    (whole,) = placed(policy, request("longer", 705))
    assert whole.decode == "u"


def test_round_robin_takes_turns_and_reads_on_the_prefill_side() -> None:
    done = placed(mesh("round_robin", 2, 3), *reads(6))
    assert [d.prefill for d in done] == ["p0", "p1"] * 3
    assert [d.decode for d in done] == ["d0", "d1", "d2"] * 2
    assert {d.path for d in done} == {ReadPath.PREFILL}


def test_a_turn_is_kept_when_an_engine_leaves() -> None:
    policy = mesh("round_robin", 3, 1)
    assert [d.prefill for d in placed(policy, *reads(2))] == ["p0", "p1"]
    policy.remove("p0")
    assert [d.prefill for d in placed(policy, *reads(3))] == ["p2", "p1", "p2"]


@pytest.mark.parametrize(
    ("prefill", "decode"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (3, 4), (3, 5), (4, 8), (8, 6)]
)
def test_two_paths_in_turn_are_even_for_each_engine(prefill: int, decode: int) -> None:
    done = placed(mesh("dualpath_round_robin", prefill, decode), *reads(240))
    assert sum(d.path is ReadPath.DECODE for d in done) == pytest.approx(120, abs=4)
    for name in {d.prefill for d in done} | {d.decode for d in done}:
        mine = [d.path is ReadPath.DECODE for d in done if name in (d.prefill, d.decode)]
        assert sum(mine) == pytest.approx(len(mine) / 2, abs=2)


def test_basic_reads_on_the_prefill_side_however_long_its_queue() -> None:
    policy = make_policy("basic", Parameters(alpha_tokens=10))
    join(policy, Role.PREFILL, "busy reader", reads=10_000)
    join(policy, Role.PREFILL, "busy computer", tokens=100)
    join(policy, Role.DECODE, "d")
    (first,) = placed(policy, request(hit=576))
    assert (first.prefill, first.path) == ("busy reader", ReadPath.PREFILL)
    policy = make_policy("dualpath", Parameters(alpha_tokens=10))
    join(policy, Role.PREFILL, "busy reader", reads=10_000)
    join(policy, Role.PREFILL, "busy computer", tokens=100)
    join(policy, Role.DECODE, "d")
    assert placed(policy, request())[0].prefill == "busy computer"


def test_two_paths_share_reads_between_the_sides() -> None:
    done = placed(mesh("dualpath"), *reads(16))
    assert sum(d.path is ReadPath.DECODE for d in done) == 8


def test_the_queue_waits_in_order_and_moves_with_a_report() -> None:
    policy = mesh("dualpath", 1, 1, beta_tokens=600)
    assert [d.request_id for d in place(policy, *reads(3))] == ["0"]
    assert policy.waiting == 2
    assert policy.decide() == []
    policy.report("p0", Load(0, 0, 0, PAGES))
    assert [d.request_id for d in policy.decide()] == ["1"]
    assert policy.withdraw("2")
    policy.report("p0", Load(0, 0, 0, PAGES))
    assert policy.decide() == []
    assert policy.waiting == 0


def test_without_free_memory_only_its_group_waits() -> None:
    policy = make_policy("dualpath")
    join(policy, Role.PREFILL, "p")
    join(policy, Role.DECODE, "full", tokens=0, free_pages=0)
    join(policy, Role.DECODE, "free", tokens=600)
    done = place(policy, *reads(3))
    assert [(d.request_id, d.decode) for d in done if isinstance(d, Placement)] == [("1", "free")]
    policy.report("full", Load(0, 0, 0, PAGES))
    assert [d.request_id for d in policy.decide()] == ["0", "2"]


def test_the_queue_is_bounded() -> None:
    policy = mesh("dualpath", 1, 1, beta_tokens=0, max_waiting=2)
    place(policy, request("first"))
    (refusal,) = place(policy, *reads(3))
    assert isinstance(refusal, Refusal)
    assert (refusal.request_id, refusal.reason) == ("2", RefusalReason.QUEUE_FULL)
    assert "2 requests wait" in refusal.message


def test_those_who_wait_are_refused_when_no_engine_is_left_for_them() -> None:
    policy = mesh("dualpath", 1, 1, beta_tokens=0)
    place(policy, request("first"))
    assert place(policy, request("second")) == []
    policy.remove("d0")
    (refusal,) = policy.decide()
    assert isinstance(refusal, Refusal)
    assert (refusal.request_id, refusal.reason) == ("second", RefusalReason.NO_LIVE_ENGINE)
    assert policy.waiting == 0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_unified_engines_serve_while_one_side_is_missing(name: str) -> None:
    policy = mesh(name, 1, 0)
    join(policy, Role.UNIFIED, "u")
    assert placed(policy, request(hit=64)) == [Placement("r", "u", "u", ReadPath.UNIFIED, 64)]
    join(policy, Role.DECODE, "d")
    assert placed(policy, request())[0].prefill == "p0"
    policy.add(Engine("large", "large", "large", Role.UNIFIED, "m", 64, 2 * PAGES, 2 * PAGES * 64), Load(9, 9, 9, 9))
    assert placed(policy, request(prompt=PAGES * 64 + 1))[0].decode == "large"


def test_models_share_neither_engines_nor_turns() -> None:
    policy = mesh("dualpath", 1, 1, beta_tokens=0)
    place(policy, request("first"))
    policy.add(Engine("u", "u", "u", Role.UNIFIED, "other", 64, PAGES, PAGES * 64), Load(0, 0, 0, PAGES))
    assert place(policy, request("waits")) == []
    (decision,) = place(policy, Request("goes", "other", 10, 0, 10))
    assert isinstance(decision, Placement)
    assert decision.decode == "u"


def test_who_holds_the_hit_loses_to_an_idle_one_that_must_read_once_it_has_more_to_do_than_that_saves() -> None:
    held = (Held("u1", 576),)
    for tokens, right in ((0, "u1"), (575, "u1"), (576, "u0"), (5000, "u0")):
        policy = make_policy("least_tokens", Parameters(local_reuse=True))
        join(policy, Role.UNIFIED, "u0")
        join(policy, Role.UNIFIED, "u1", tokens=tokens)
        (first,) = placed(policy, request(hit=576, held=held))
        assert first.prefill == right
        assert (first.prefill_read_tokens, first.reused_tokens) == ((0, 576) if right == "u1" else (576, 0))


def test_engines_that_hold_the_hit_go_first_while_load_allows() -> None:
    held = (Held("p1", 320), Held("d1", 512))
    policy = mesh("dualpath", local_reuse=True)
    (first,) = placed(policy, request(hit=576, held=held))
    assert (first.prefill, first.decode, first.path) == ("p1", "d1", ReadPath.DECODE)
    assert (first.decode_read_tokens, first.reused_tokens) == (64, 512)
    policy.report("p1", Load(1, 10**6, 0, PAGES))
    policy.report("d1", Load(1, 2000, 0, PAGES))
    (second,) = placed(policy, request(hit=576, held=held))
    assert (second.prefill, second.decode, second.reused_tokens) == ("p0", "d0", 0)


def test_without_reuse_nobody_asks_who_holds_what() -> None:
    (first,) = placed(mesh("dualpath"), request(hit=576, held=(Held("p1", 576), Held("d1", 576))))
    assert (first.prefill, first.decode, first.reused_tokens) == ("p0", "d0", 0)


def test_misuse_is_named() -> None:
    policy = mesh("dualpath", 1, 1, beta_tokens=0)
    place(policy, request("first"))
    place(policy, request("r"))
    with pytest.raises(ValueError, match="'r' waits already"):
        policy.submit(request("r"))
    with pytest.raises(ValueError, match="'p0' takes work already"):
        join(policy, Role.PREFILL, "p0")
    with pytest.raises(KeyError):
        policy.report("nobody", Load(0, 0, 0, 0))
    policy.remove("nobody")
    with pytest.raises(ValueError, match="max_waiting: 0"):
        Parameters(max_waiting=0)
