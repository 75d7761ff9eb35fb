"""Stopping: not ready at once, running requests finish, what outlasts the grace time ends with an error."""

import asyncio

from tests.gateway.conftest import site_of
from tests.gateway.fakes import MODEL, FakeTokenizer


async def test_draining_finishes_what_runs(fake: FakeTokenizer) -> None:
    fake.script = fake.then_hold
    async with site_of(fake, grace_s=60.0) as site, site.open_stream() as response:
        await response.content.readuntil(b"Hello")
        site.life.stopping.set()
        await site.until_ready(503)
        assert (await site.get("/health")).status == 200
        refused = await site.chat()
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        fake.hold.set()
        rest = (await response.read()).decode()
        assert " world" in rest
        assert '"finish_reason":"stop"' in rest


async def test_what_outlasts_the_grace_time_ends_with_an_error(fake: FakeTokenizer) -> None:
    fake.script = fake.then_hold
    async with site_of(fake, grace_s=0.05, max_running=2, max_choices=1) as site, site.open_stream() as response:
        await response.content.readuntil(b"Hello")
        whole = asyncio.create_task(site.chat())
        await fake.until(lambda: len(fake.submits) == 2)
        queued = asyncio.create_task(site.chat())
        await site.until_metric(f'num_requests_waiting{{model_name="{MODEL}"}}', 1)
        site.life.stopping.set()
        rest = (await response.read()).decode()
        assert '"code":"shutting_down"' in rest
        assert rest.endswith("data: [DONE]\n\n")
        for answer in (await whole, await queued):
            assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        await fake.until(lambda: len(fake.cancels) == 2)
        await asyncio.wait_for(site.task, 60)
