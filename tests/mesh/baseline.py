"""What engines and store hold, as they tell it; and the wait until nothing is held any more."""

import re

from services.kvstore.client import StoreClient, StoreStats
from tests.mesh.harness import Client

LINKS = re.compile(r'^hostless:engine_kv_link_bytes_total\{.*link="(\w+)"\} (\S+)$', re.M)


def engines(c: Client) -> list[str]:
    return [name for name in c.mesh.plans if name.startswith(("prefill", "decode", "gpu_backend"))]


async def page(c: Client, name: str) -> str:
    async with c.session.get(f"http://{c.mesh.plans[name].metrics}/metrics") as response:
        return await response.text()


async def moved(c: Client) -> dict[str, int]:
    """Bytes over each link, all engines together."""
    found: dict[str, int] = {}
    for name in engines(c):
        for link, count in LINKS.findall(await page(c, name)):
            found[link] = found.get(link, 0) + int(float(count))
    return found


async def value(c: Client, engine: str, name: str) -> float:
    match = re.search(rf"^hostless:engine_{name}(?:_total)?\{{.*\}} (\S+)$", await page(c, engine), re.M)
    assert match, name
    return float(match[1])


async def stats(c: Client) -> StoreStats:
    async with StoreClient(c.mesh.plans["kvstore"].address) as store:
        return await store.stats()


async def at_baseline(c: Client) -> None:
    """Slots, pages, buffers and leases are all free again."""
    await c.until_idle(30)

    async def free() -> bool:
        for engine in engines(c):
            if await value(c, engine, "kv_cache_usage_perc") or await value(c, engine, "kv_receive_buffer_bytes"):
                return False
            if await value(c, engine, "loading") or await value(c, engine, "expecting"):
                return False
        held = await stats(c)
        return not (held.leases or held.tickets)

    await c.until("pages, buffers and leases are free", free, 30)
