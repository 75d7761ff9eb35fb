"""Text in, text out: what a gateway sees of requests that go well."""

import asyncio
from pathlib import Path

import pytest

from hostless.v1 import frontend_pb2 as pb
from services.fabric.ring import Finish
from tests.tokenizer.service.rig import make_rig, submit
from tests.waiting import until


async def test_text_comes_back_and_ends_by_length(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        text, last = await rig.collect(submit("hello world", max_tokens=5))
        assert text == "hello world" * 2 + "hello"
        assert last.finish == pb.FINISH_LENGTH
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 5)
        await rig.at_rest()


async def test_a_chat_goes_through_the_template(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        chat = pb.Chat(messages_json='[{"role": "user", "content": "hello<|im_end|>"}]')
        request = submit(max_tokens=3)
        request.chat.CopyFrom(chat)
        await rig.collect(request)
        (prompt,) = rig.engine.script.prompts
        assert [i for i in prompt if i < 3] == [1, 2, 1]


async def test_the_record_says_what_was_asked(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        sampling = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 2**64 - 1, "stop_token_ids": [9, 8]}
        await rig.collect(submit(sampling=sampling))
        await rig.collect(submit(sampling={"ignore_eos": True}))
        first, second = rig.engine.script.records
        assert (first["temperature"], first["top_p"], first["top_k"], first["seed"]) == (0.5, 0.25, 7, 2**64 - 1)
        assert (first["stop_count"], first["stop_ids"][:3], first["flags"]) == (3, [2, 9, 8], 0)
        assert (second["stop_count"], second["stop_ids"][0], second["flags"]) == (1, 2, 1)
        assert second["seed"]


@pytest.mark.parametrize(("followed", "drawn"), [(True, (0.75, 1, 20)), (False, (1, 1, 0))])
async def test_what_a_request_leaves_open_is_the_models(
    tmp_path: Path, followed: bool, drawn: tuple[float, float, int]
) -> None:
    async with make_rig(tmp_path, model_sampling=followed) as rig:
        silent = submit()
        silent.sampling.ClearField("temperature")
        await rig.collect(silent)
        await rig.collect(submit(sampling={"temperature": 0.5, "top_p": 0.25, "top_k": 0}))
        first, second = ((r["temperature"], r["top_p"], r["top_k"]) for r in rig.engine.script.records)
        assert (first, second) == (drawn, (0.5, 0.25, 0))


async def test_stop_token_has_no_text_but_counts(tmp_path: Path) -> None:
    async with make_rig(tmp_path, script=lambda p, s, m: ([*p, 40], Finish.STOP)) as rig:
        text, last = await rig.collect(submit("hello", sampling={"stop_token_ids": [40]}))
        assert (text, last.finish, last.usage.completion_tokens) == ("hello", pb.FINISH_STOP, 2)


async def test_stop_string_ends_the_request_at_once_and_frees_the_slot(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        text, last = await rig.collect(submit("hello world", max_tokens=None, stop=["o w", "never"]))
        assert (text, last.finish, last.usage.completion_tokens) == ("hell", pb.FINISH_STOP, 2)
        await rig.at_rest()


async def test_a_held_back_prefix_comes_in_full_at_the_end(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        text, last = await rig.collect(submit("hello", max_tokens=3, stop=["hellohellohello!"]))
        assert (text, last.finish) == ("hellohellohello", pb.FINISH_LENGTH)


async def test_a_character_split_over_tokens_comes_whole(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        rig.engine.script.pace = 1
        with rig.client.stream(submit("語é", max_tokens=6)) as stream:
            deltas = [delta async for delta in stream]
        assert "".join(delta.text for delta in deltas) == "語é�"
        assert all(delta.text in ("語", "é", "語é") for delta in deltas[:-1])


async def test_echo_puts_the_prompt_in_front(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        text, last = await rig.collect(submit("hello world", max_tokens=2, echo=True, stop=["hello w"]))
        assert (text, last.finish) == ("hello world", pb.FINISH_STOP)
        text, last = await rig.collect(submit("hello", max_tokens=0, echo=True))
        assert (text, last.finish, last.usage.completion_tokens) == ("hello", pb.FINISH_LENGTH, 0)


async def test_max_tokens_is_clamped_to_the_context(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        rig.engine.script.pace = 1000
        for asked in (None, 10**6):
            _, last = await rig.collect(submit("hello", max_tokens=asked))
            assert (last.finish, last.usage.completion_tokens) == (pb.FINISH_LENGTH, 4095)


async def test_more_requests_than_slots_all_come_to_their_end(tmp_path: Path) -> None:
    async with make_rig(tmp_path, slots=64) as rig:  # 8 slots a front end
        replies = await asyncio.gather(*(rig.collect(submit("hello", max_tokens=i % 7 + 1)) for i in range(60)))
        assert [text for text, _ in replies] == ["hello" * (i % 7 + 1) for i in range(60)]
        await rig.at_rest()
        assert len(rig.mesh.bursts) < 60


async def test_one_message_a_poll(tmp_path: Path) -> None:
    async with make_rig(tmp_path, slots=512) as rig:
        await asyncio.gather(*(rig.collect(submit("hello", max_tokens=40)) for _ in range(30)))
        (session,) = rig.tokenizer.service.sessions
        assert session.messages <= rig.tokenizer.pool.polls + 30


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (submit(model="nobody"), 404, "model_not_found"),
        (submit(""), 400, ""),
        (submit("a" * 5000), 400, "context_length_exceeded"),
        (submit(sampling={"top_p": 2.0}), 400, ""),
        (submit(sampling={"stop_token_ids": [9] * 8}), 400, ""),
    ],
)
async def test_refusals_have_a_status_and_the_next_request_works(
    tmp_path: Path, request_: pb.Submit, status: int, code: str
) -> None:
    async with make_rig(tmp_path) as rig:
        text, last = await rig.collect(request_)
        assert (text, last.finish) == ("", pb.FINISH_ERROR)
        assert (last.error.http_status, last.error.code) == (status, code)
        assert last.error.message
        assert (await rig.collect(submit(max_tokens=1)))[0] == "hello"
        await rig.at_rest()


async def test_a_very_long_prompt_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """The long prompt waits for the one long thread, which is kept busy here; a short one passes it."""
    async with make_rig(tmp_path) as rig:
        blocked, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(blocked.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)

        blocker = asyncio.create_task(rig.tokenizer.encoding.run(block, 1 << 20))
        await blocked.wait()
        long = asyncio.create_task(rig.collect(submit("hello " * 40_000)))
        assert (await rig.collect(submit(max_tokens=1)))[0] == "hello"
        assert not long.done()
        go_on.set()
        await blocker
        assert (await long)[1].error.code == "context_length_exceeded"


async def test_describe_lists_models_and_readiness(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        described = await rig.client.describe()
        (model,) = described.models
        assert (described.ready, model.id, model.context_length, model.vocab_size) == (True, "toy", 4096, 300)
        assert model.created > 0
        rig.mesh.show([])
        await until(lambda: not rig.tokenizer.live.engines)
        described = await rig.client.describe()
        assert (described.ready, described.reason) == (False, "no engine lives")
