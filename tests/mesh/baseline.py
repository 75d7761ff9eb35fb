"""What engines and store hold, as they tell it; and the wait until nothing is held any more."""

import re

from services.kvstore.client import StoreClient, StoreStats
from tests.mesh.harness import Client

BASELINE_S = 60.0
IDLE = (
    "kv_cache_usage_perc", "kv_receive_buffer_bytes", "kv_receive_buffer_late_bytes", "kv_left_bytes", "loading",
    "expecting",
)  # fmt: skip
"""Metrics of an engine that are 0 then."""
LINKS = re.compile(r'^hostless:engine_kv_link_bytes_total\{.*link="(\w+)".*\} (\S+)$', re.M)


def link_bytes(page: str) -> dict[str, int]:
    """KV bytes that an engine has moved over each link, of its /metrics."""
    return {link: int(float(count)) for link, count in LINKS.findall(page)}


def engines(c: Client) -> list[str]:
    return [name for name in c.mesh.plans if name.startswith(("prefill", "decode", "gpu_backend"))]


async def page(c: Client, name: str) -> str:
    async with c.session.get(f"http://{c.mesh.plans[name].metrics}/metrics") as response:
        return await response.text()


async def moved(c: Client) -> dict[str, int]:
    """Bytes over each link, all engines together."""
    found: dict[str, int] = {}
    for name in engines(c):
        for link, count in link_bytes(await page(c, name)).items():
            found[link] = found.get(link, 0) + count
    return found


async def value(c: Client, engine: str, name: str) -> float:
    match = re.search(rf"^hostless:engine_{name}(?:_total)?\{{.*\}} (\S+)$", await page(c, engine), re.M)
    assert match, name
    return float(match[1])


async def stats(c: Client) -> StoreStats:
    async with StoreClient(c.mesh.plans["kvstore"].address) as store:
        return await store.stats()


async def held(c: Client) -> dict[str, float]:
    """What is not free, by its name; empty at baseline."""
    found = {f"{state} slots": count for state, count in (await c.busy_slots()).items()}
    for engine in engines(c):
        for name in IDLE:
            found[f"{engine} {name}"] = await value(c, engine, name)
    store = await stats(c)
    found |= {"store's leases": store.leases, "store's tickets": store.tickets}
    return {name: count for name, count in found.items() if count}


async def at_baseline(c: Client) -> None:
    """Slots, pages, buffers and leases are all free again."""
    left: dict[str, float] = {}

    async def free() -> bool:
        nonlocal left
        left = await held(c)
        return not left

    try:
        await c.until("all is free", free, BASELINE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; held: {left}") from None
