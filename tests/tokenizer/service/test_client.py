"""What the client promises when the session breaks; tests/gateway/test_session.py has how messages are made."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.tokenizer.assembly import running
from services.tokenizer.settings import TokenizerSettings
from tests.tokenizer.service.rig import make_rig, submit
from tests.tokenizer.service.streams import SessionEnded, stream_client
from tests.waiting import until


async def test_a_broken_session_ends_its_requests_and_a_new_one_is_opened(tmp_path: Path) -> None:
    async with make_rig(tmp_path, max_unsent_deltas=1) as rig:
        rig.engine.script.pace = 1
        streams = [rig.client.stream(submit(max_tokens=None)) for _ in range(4)]  # more deltas a poll than the bound
        with pytest.raises(SessionEnded):
            async for _ in streams[0]:
                pass
        await until(lambda: rig.client.connected)
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
            async with stream_client(f"127.0.0.1:{second.port}") as client:
                await until(lambda: client.connected)
                stream = client.stream(submit())
                await until(lambda: second.service.running == 1)
                await stack.aclose()
                with pytest.raises(SessionEnded):
                    await anext(stream)
