"""`hostless bench kv`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from services.cli.console import terminal
from services.cli.errors import CliError, UsageError
from services.cli.kv.store import Address, ask, parse_size, size

if TYPE_CHECKING:  # it takes its time to load, which only these commands should pay
    from services.cli.kv.load import KvFigures, KvLoad, Rate
    from services.kvstore.client import StoreClient

LARGEST_BLOCK = 1 << 30
"""Of any engine; a store says itself when its own takes less."""


def bench_kv(
    store: Address = "",
    blocks: Annotated[int, typer.Option(help="Blocks of one chain.", min=1)] = 64,
    block: Annotated[str, typer.Option(help="Size of a block.")] = "1MiB",
    lookups: Annotated[int, typer.Option(help="Lookups to time.", min=1)] = 500,
    keys: Annotated[int, typer.Option(help="Keys of a lookup.", min=1)] = 512,
    layers: Annotated[int, typer.Option(help="Layers of a block; one is read alone too.", min=1)] = 32,
    readers: Annotated[int, typer.Option(help="Readers at a time.", min=1)] = 1,
    passes: Annotated[int, typer.Option(help="Times that each reads the chain.", min=1)] = 4,
    evict: Annotated[bool, typer.Option("--evict", help="Even if others' blocks must go for it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Measure a KV store: lookups over gRPC, writes, reads of blocks and of layers into shared memory.

    [bold]Examples[/bold]

    hostless bench kv                                # the store of the mesh here

    hostless bench kv --block 4MiB --blocks 256 --readers 4 --store host:7030

    What it wrote stays until it is evicted. Reads may come from the page cache: engine files reads through it.
    """
    from services.cli.kv.load import KvLoad, run

    load = KvLoad(blocks, parse_size(block), lookups, keys, layers, readers, passes)
    if not layers <= load.block_bytes <= LARGEST_BLOCK:
        raise UsageError(f"--block: {block} is no size of a block of {layers} layers", "From a byte a layer to 1GiB")

    async def measure(client: "StoreClient") -> "KvFigures":
        stats = await client.stats()
        room, need = stats.capacity_bytes - stats.bytes, blocks * (load.block_bytes + 8192)
        if need > room and not evict:
            raise CliError(f"{size(need)} don't fit into the {size(room)} that are free", "Fewer --blocks, or --evict")
        console = Console(stderr=True)
        with console.status("") as line:
            return await run(client, load, lambda what: line.update(what))

    try:
        figures = ask(store, measure)
    except RuntimeError as error:
        raise CliError(str(error)) from error
    if as_json:
        typer.echo(json.dumps({"load": asdict(load), **asdict(figures)}))
    else:
        terminal().print(_table(load, figures))


def _table(load: "KvLoad", figures: "KvFigures") -> Table:
    table = Table("", box=None, header_style="dim", pad_edge=False)
    for name in ("rate", "p50", "p99", "max"):
        table.add_column(name, justify="right")
    lookups = figures.lookup_s
    table.add_row(f"lookup of {load.lookup_keys} keys", f"{len(lookups) / sum(lookups):,.0f}/s", *_times(lookups))
    for name, rate in (("write", figures.write), ("read", figures.read), ("read of one layer", figures.layer_read)):
        table.add_row(name, _speed(rate), *_times(rate.latencies_s))
    return table


def _speed(rate: "Rate") -> str:
    speed = rate.bytes / rate.seconds
    return f"{speed / 1e9:.2f} GB/s" if speed >= 1e8 else f"{speed / 1e6:.2f} MB/s"


def _times(seconds: list[float]) -> list[str]:
    ordered = sorted(seconds)
    chosen = (ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1])
    return [f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs" for value in chosen]
