"""What needs no GPU of the scheduler on a GPU: layouts, settings, refusals."""

import numpy as np
import pytest

from services.gpu_backend import _device
from services.gpu_backend.device.agent_memory import AgentMemory
from services.gpu_backend.device.settings import MOST_LAUNCHES, DeviceSettings
from services.gpu_backend.engine import STEP_SEQUENCE
from services.gpu_backend.scheduler.memory import KV_ORDER
from services.gpu_backend.scheduler.orders import OrderQueue
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.toy import VOCABULARY
from tests.gpu_backend.scheduler.world import MAX_CONTEXT, World

SETTINGS = SchedulerSettings(lanes=4, step_tokens=64, pages=9, order_capacity=8)


def core_settings() -> dict[str, int]:
    return SETTINGS.core(MAX_CONTEXT, VOCABULARY)


def images() -> tuple[World, np.ndarray, np.ndarray]:
    world = World(SETTINGS)
    core, engine, hot = _device.images(
        ring=world.ring.buffer, settings=core_settings(), decode_graphs=[1, 4], prefill_graphs=[64]
    )
    assert hot % 64 == 0
    assert 0 < hot < len(core)
    return world, core, engine


def test_parts_of_engine_memory_lie_apart() -> None:
    _, _, engine = images()
    at = _device.engine_layout(engine)
    parts = [
        (at["sequences_offset"], at["lanes"] * STEP_SEQUENCE.itemsize),
        (at["tokens_offset"], 4 * at["step_tokens"]),
        (at["out_tokens_offset"], 4 * at["lanes"]),
        (at["block_tables_offset"], 4 * at["lanes"] * at["lane_pages"]),
        (at["load_done_offset"], 8 * at["slots"]),
        (at["orders_offset"], at["order_capacity"] * KV_ORDER.itemsize),
    ]
    for (begin, size), following in zip(parts, [begin for begin, _ in parts[1:]] + [at["size_bytes"]], strict=True):
        assert begin % 64 == 0
        assert begin + size <= following
    assert len(engine) == at["size_bytes"]


def test_the_books_of_a_fresh_scheduler_add_up_and_wrong_ones_are_found() -> None:
    world, core, engine = images()
    ring = world.ring.buffer
    assert _device.check(core=core, ring=ring, engine=engine, agent=engine) == ""
    counters = np.dtype(_device.COUNTERS)
    assert counters.itemsize == 8 * len(counters.names or ())
    words = core.view(np.uint32)
    (stack,) = np.flatnonzero((words[:-2] == 8) & (words[1:-1] == 7) & (words[2:] == 6))  # free pages
    words[stack] = 7  # one twice, one never
    world.ring.grant(world.ring.share(1))
    words[np.flatnonzero(words[:stack] == 9)[-1]] += 1
    assert "pages" in _device.check(core=core, ring=ring, engine=engine, agent=engine)


def test_settings_that_do_not_fit_the_ring_are_named() -> None:
    world = World(SETTINGS)
    with pytest.raises(ValueError, match="pages differ"):
        _device.images(
            ring=world.ring.buffer, settings=core_settings() | {"pages": 10}, decode_graphs=[4], prefill_graphs=[64]
        )
    with pytest.raises(KeyError, match="lanes"):
        _device.images(ring=world.ring.buffer, settings={}, decode_graphs=[4], prefill_graphs=[64])
    with pytest.raises(ValueError, match="decode_graphs must end with the largest shape"):
        _device.images(ring=world.ring.buffer, settings=core_settings(), decode_graphs=[3], prefill_graphs=[64])


def test_orders_go_through_the_agents_memory() -> None:
    _, _, engine = images()
    at = _device.engine_layout(engine)
    memory = AgentMemory(engine, at)
    queue = OrderQueue(memory, memory)
    memory.orders[0]["kind"], memory.orders[0]["lane"], memory.orders[0]["block_count"] = 1, 2, 3
    memory.orders[0]["slot"], memory.orders[0]["generation"] = 5, 7
    memory.block_tables[2, :3] = 6, 1, 4
    engine[at["orders_head_offset"] :][:8].view(np.uint64)[0] = 1
    (order,) = queue.take()
    assert queue.pages_of(order).tolist() == [6, 1, 4]
    queue.answer_load(order, 2)
    assert engine[at["load_done_offset"] :][: 8 * at["slots"]].view(np.uint64)[5] == 7 | 2 << 32
    queue.release(1)
    assert engine[at["orders_tail_offset"] :][:8].view(np.uint64)[0] == 1
    with pytest.raises(ValueError, match="no such orders"):
        memory.release_orders(2)


@pytest.mark.parametrize(
    "wrong", [{"launch_window": 1}, {"launch_window": MOST_LAUNCHES + 1}, {"deadline_s": -1.0}, {"report_s": -1.0}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DeviceSettings(**wrong)  # type: ignore[arg-type]


def test_gpus_and_drivers_that_cannot_do_it_are_refused() -> None:
    driver = pytest.importorskip("services.gpu_backend.device.driver", exc_type=RuntimeError)
    driver.check_device("NVIDIA H200", 90, 13000)
    with pytest.raises(driver.NoDevice, match=r"NVIDIA A100 has compute capability 8\.0.*9\.0"):
        driver.check_device("NVIDIA A100", 80, 13000)
    with pytest.raises(driver.NoDevice, match=r"CUDA 12\.2.*12\.4"):
        driver.check_device("NVIDIA H100", 90, 12020)
