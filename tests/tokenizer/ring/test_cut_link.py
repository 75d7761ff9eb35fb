"""A front end of several engines, one of them behind a network that has died: the streams of the others go on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.remote_region import RemoteRegion
from services.fabric.tcp.agent import TcpPublisher
from services.fabric.tcp.region import TcpRegion
from services.tokenizer import attachment as attachments
from services.tokenizer.submission import RingRequest
from tests.tokenizer.ring.cable import Cable
from tests.tokenizer.ring.conftest import Rig
from tests.tokenizer.ring.test_attachment import FAST, MakeRequest, MakeRig, Setting, attached, submit
from tests.waiting import until

NEVER_S = 600.0
"""How long a region of these tests waits for an owner that is silent: longer than any test."""


@pytest.fixture
def publisher() -> Iterator[TcpPublisher]:
    made = TcpPublisher("127.0.0.1:0")
    yield made
    made.close()


@pytest.fixture
def cable(publisher: TcpPublisher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    """Between the front end and the first engine; the others are reached by no cable that can be cut."""
    host, _, port = publisher.address.rpartition(":")
    made = Cable((host, int(port)))
    opened = 0

    def open_region(descriptor: RegionDescriptor) -> RemoteRegion:
        nonlocal opened
        opened += 1
        by_cable = RegionDescriptor()
        by_cable.CopyFrom(descriptor)
        if opened == 1:
            by_cable.address = made.address
        return TcpRegion(by_cable, silence_s=NEVER_S)

    monkeypatch.setattr(attachments, "open_region", open_region)
    yield made
    made.close()


@pytest.fixture
async def two(cable: Cable, rig: MakeRig) -> AsyncIterator[tuple[Setting, Setting]]:
    """Attached to an engine behind the cable, and to another one."""
    patient = replace(FAST, stall_s=NEVER_S)
    async with AsyncExitStack() as stack:
        rigs: list[Rig] = [rig(words=1 << 16), rig()]
        behind, beside = [await stack.enter_async_context(attached(one, settings=patient)) for one in rigs]
        yield behind, beside


async def flowing(behind: Setting, request_of: Callable[..., RingRequest]) -> None:
    await submit(behind.attachment, [request_of(max_tokens=4000, tag="long")])
    await until(lambda: len(behind.inbox.tokens["long"]) > 4)


async def whole(beside: Setting, request: RingRequest) -> None:
    await submit(beside.attachment, [request])
    await until(lambda: request.tag in beside.inbox.finishes)
    assert len(beside.inbox.tokens[request.tag]) == request.max_tokens


async def test_the_streams_of_other_engines_go_on(
    two: tuple[Setting, Setting], cable: Cable, request_of: MakeRequest
) -> None:
    behind, beside = two
    await flowing(behind, request_of)
    cable.cut()
    published: list[object] = []
    behind.attachment.submit([request_of(tag="late")], published.append)
    for number in range(20):
        await whole(beside, request_of(max_tokens=8, tag=number))
    behind.attachment.cancel([])
    await whole(beside, request_of(max_tokens=8, tag="last"))
    assert (published, behind.attachment.lost) == ([], None)  # all this time, it waited for the dead network

    cable.mend()
    await until(lambda: "late" in behind.inbox.finishes)
    assert len(behind.inbox.tokens["late"]) == 8


async def test_an_attachment_behind_a_dead_network_can_be_given_up_at_once(
    two: tuple[Setting, Setting], cable: Cable, request_of: MakeRequest
) -> None:
    behind, beside = two
    await flowing(behind, request_of)
    cable.cut()
    behind.running.cancel()
    async with asyncio.timeout(60):
        await behind.attachment.close()
    await whole(beside, request_of(max_tokens=8, tag="after"))


async def test_a_ring_that_does_not_answer_is_lost(cable: Cable, rig: MakeRig, request_of: MakeRequest) -> None:
    """Whatever the transport thinks of it."""
    async with attached(rig(words=1 << 16), settings=replace(FAST, stall_s=1.5)) as behind:
        await flowing(behind, request_of)
        cable.cut()
        reason, tags = await behind.lost()
        assert reason == "the ring has not answered for 1.5 s"
        assert tags == ["long"]
        cable.mend()
