"""What the tests of the global scheduler share: words that leaders say."""

from collections.abc import Callable

import pytest

from hostless.v1 import scheduler_pb2 as pb

Up = Callable[..., pb.LeaderUp]


@pytest.fixture
def up() -> Up:
    """up("a", "b", tokens=3): one message that introduces engines a and b and reports on them."""
    return make_up


def make_up(
    *engine_ids: str,
    epoch: int = 1,
    tokens: int = 0,
    accepting: bool = True,
    introduce: bool = True,
    group: str = "g",
    role: pb.Role = pb.ROLE_UNIFIED,
    node: str = "",
    reads: int = 0,
) -> pb.LeaderUp:
    infos = [
        pb.EngineInfo(
            engine_id=engine_id,
            address="127.0.0.1:1",
            model="small",
            epoch=epoch,
            page_tokens=64,
            page_count=100,
            max_context=2048,
            role=role,
            node_id=node,
        )
        for engine_id in engine_ids
    ]
    reports = [
        pb.EngineReport(
            engine_id=engine_id, tokens=tokens, accepting=accepting, read_queue_tokens=reads, free_pages=100
        )
        for engine_id in engine_ids
    ]
    return pb.LeaderUp(group_id=group, engines=infos if introduce else [], reports=reports)
