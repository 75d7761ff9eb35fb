"""What the client itself promises: merging, errors, and a new session after a broken one."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.assembly import running
from services.tokenizer.client import FrontendClient, FrontendUnavailable
from services.tokenizer.settings import TokenizerSettings
from tests.tokenizer.service.rig import make_rig, submit, until


async def test_what_nobody_took_is_merged_into_one_delta(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        stream = rig.client.submit(submit(max_tokens=20))
        await until(lambda: rig.client.in_flight == 0)
        (delta,) = [delta async for delta in stream]
        assert (delta.text, delta.tokens, delta.finish) == ("hello" * 20, 20, pb.FINISH_LENGTH)
        assert delta.usage.completion_tokens == 20


async def test_a_broken_session_ends_its_requests_and_a_new_one_is_opened(tmp_path: Path) -> None:
    async with make_rig(tmp_path, max_unsent_deltas=1) as rig:
        rig.engine.script.pace = 1
        streams = [rig.client.submit(submit(max_tokens=None)) for _ in range(4)]  # more deltas a poll than the bound
        with pytest.raises(FrontendUnavailable, match="the session ended"):
            async for _ in streams[0]:
                pass
        async with asyncio.timeout(10):
            await rig.client.connected.wait()
        assert (await rig.collect(submit(max_tokens=1)))[0] == "hello"
        await rig.at_rest()


async def test_the_end_of_the_tokenizer_reaches_every_reader(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        settings = TokenizerSettings(
            address="127.0.0.1:0", scheduler=rig.mesh.address, metrics_address="", engine_wait_s=30.0
        )
        rig.mesh.show([])
        async with AsyncExitStack() as stack:
            second = await stack.enter_async_context(running(settings))
            async with FrontendClient(f"127.0.0.1:{second.port}") as client:
                await client.connected.wait()
                stream = client.submit(submit())
                await until(lambda: second.service.running == 1)
                await stack.aclose()
                with pytest.raises(FrontendUnavailable):
                    await anext(stream)
