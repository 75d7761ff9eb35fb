"""hostless kv and hostless bench kv, against a real store in a thread."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.errors import CliError
from services.cli.kv.store import parse_size, size
from services.cli.main import app
from services.common import rpc
from services.kvstore.client import StoreClient
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.service import NAME
from services.kvstore.settings import StoreSettings
from services.kvstore.store import open_store

BENCH = ["bench", "kv", "--blocks", "20", "--block", "64k", "--lookups", "5", "--keys", "50", "--layers", "4"]


@dataclass
class Served:
    address: str
    folder: Path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A store with room for 39 blocks of 64 KiB."""
    folder, shm = tmp_path / "store", tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("HOSTLESS_SHM", str(shm))
    ready, stop, found = threading.Event(), asyncio.Event(), list[int]()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        options = StoreSettings(
            engine="files", path=str(folder), capacity_bytes=39 * (68 << 10), write_buffer_bytes=16 << 20
        )
        async with (
            open_store(options, FileEngine(folder)) as service,
            rpc.serve("127.0.0.1:0", service.register, [NAME], grace_s=0) as server,
        ):
            found.append(server.port)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    yield Served(f"127.0.0.1:{found[0]}", folder)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def hostless(store: Served, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*words, "--store", store.address], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_bench_then_look_then_verify_then_empty(store: Served) -> None:
    output = hostless(store, *BENCH)
    for word in ("lookup of 50 keys", "write", "read of one layer", "GB/s", "p99"):
        assert word in output
    stats = json.loads(hostless(store, "kv", "stat", "--json"))
    assert (stats["blocks"], stats["blocks_written"], stats["engine"]) == (20, 20, "files")
    assert "20 blocks" in hostless(store, "kv", "stat")
    roots = hostless(store, "kv", "ls").splitlines()
    assert roots[0].split() == ["root", "blocks", "bytes", "longest", "chain", "pinned"]
    assert roots[1].split()[1:] == ["20", "1.2", "MiB", "20", "0"]
    blocks = [json.loads(line) for line in hostless(store, "kv", "ls", "--json").splitlines()]
    assert sorted(block["position"] for block in blocks) == list(range(20))
    assert "5 of 20" in hostless(store, "kv", "ls", "--blocks", "--limit", "5")
    assert hostless(store, "kv", "ls", "--json", "--root", "zz") == ""
    assert hostless(store, "kv", "verify") == "20 blocks, 1.2 MiB read, 0 broken\n"
    assert hostless(store, "kv", "gc", "50%").startswith("1 blocks evicted")
    assert hostless(store, "kv", "gc", "100%").startswith("19 blocks evicted")


def test_verify_says_what_is_broken(store: Served) -> None:
    hostless(store, *BENCH)
    last = max(
        (json.loads(line) for line in hostless(store, "kv", "ls", "--json").splitlines()), key=lambda b: b["position"]
    )
    path = store.folder / "blocks" / last["key"][0] / last["key"]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    output = hostless(store, "kv", "verify", code=1)
    assert f"broken, dropped: {last['key']}" in output
    assert "1 broken" in output
    assert hostless(store, "kv", "verify").startswith("19 blocks")


def test_drain_and_resume(store: Served) -> None:
    assert "0 leases" in hostless(store, "kv", "drain")
    assert "draining" in hostless(store, "kv", "stat")
    with pytest.raises(CliError, match="draining"):
        hostless(store, *BENCH)
    assert "again" in hostless(store, "kv", "drain", "--resume")
    hostless(store, *BENCH)


def test_gc_of_more_than_there_is_evicts_nothing(store: Served) -> None:
    hostless(store, *BENCH)
    for asked in ("1TiB", "101%"):
        with pytest.raises(CliError, match="more than"):
            hostless(store, "kv", "gc", asked)
    assert "0 evicted" in hostless(store, "kv", "stat")


def test_gc_says_when_it_cannot(store: Served) -> None:
    hostless(store, *BENCH)

    async def keep_one() -> int:
        async with StoreClient(store.address) as client:
            return await client.keep([block.key async for block in client.blocks() if block.position == 0])

    assert asyncio.run(keep_one()) == 1
    hostless(store, "kv", "gc", "100%", code=1)


def test_bench_does_not_evict_others_unless_told(store: Served) -> None:
    hostless(store, *BENCH)
    with pytest.raises(CliError, match="don't fit"):
        hostless(store, *BENCH)
    hostless(store, *BENCH, "--evict")


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(CliError, match=r"127\.0\.0\.1:1") as error:
        CliRunner().invoke(app, ["kv", "stat", "--store", "127.0.0.1:1"], catch_exceptions=False)
    assert "hostless up" in error.value.hint


def test_sizes() -> None:
    assert [parse_size(text) for text in ("4096", "1.5k", "200MiB", "2GB", "1t", "7 B")] == [
        4096,
        1536,
        200 << 20,
        2 << 30,
        1 << 40,
        7,
    ]
    assert [size(count) for count in (0, 1023, 1536, 3 << 40)] == ["0 B", "1023 B", "1.5 KiB", "3.0 TiB"]
    for text in ("", "big", "5x", "-1", "1e999", "nan"):
        with pytest.raises(CliError, match="no size"):
            parse_size(text)


@pytest.mark.parametrize("block", ["0", "3", "2g"])
def test_a_block_that_cannot_be_is_refused_before_anything_is_written(store: Served, block: str) -> None:
    with pytest.raises(CliError, match="no size of a block of 4 layers"):
        hostless(store, *BENCH, "--block", block)
