"""`hostless kv ls|stat|verify|gc`."""

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from services.cli.console import terminal
from services.cli.errors import UsageError
from services.cli.kv import tables
from services.cli.kv.store import Address, ask, parse_size, size

if TYPE_CHECKING:  # it takes its time to load, which only these commands should pay
    from services.kvstore.client import StoreClient, StoredBlock, StoreStats

kv = typer.Typer(
    name="kv",
    help="Look into the KV store: what it holds, whether it is whole; make room in it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@kv.command()
def ls(
    store: Address = "",
    blocks: Annotated[bool, typer.Option("--blocks", help="Each block, not each root.")] = False,
    root: Annotated[str, typer.Option(help="Only roots whose key begins so (hex).")] = "",
    limit: Annotated[int, typer.Option(help="So many lines; 0: all.", min=0)] = 50,
    as_json: AsJson = False,
) -> None:
    """List what is stored: by root (a model, its layout and a tenant), or block by block.

    [bold]Examples[/bold]

    hostless kv ls                        # a line a root

    hostless kv ls --blocks --root 4f     # the blocks of one

    Pinned: leased by readers, parent of a block on its way, or kept.
    """

    async def collect(client: "StoreClient") -> "list[StoredBlock]":
        return [block async for block in client.blocks() if block.root.hex().startswith(root)]

    found = ask(store, collect)
    if as_json:
        for block in found:
            typer.echo(json.dumps(tables.as_dict(block)))
    elif blocks:
        terminal().print(tables.of_blocks(sorted(found, key=lambda b: (b.root, b.position)), limit))
    else:
        by_root: dict[bytes, list[StoredBlock]] = defaultdict(list)
        for block in found:
            by_root[block.root].append(block)
        terminal().print(tables.of_roots(by_root, limit))


@kv.command()
def stat(store: Address = "", as_json: AsJson = False) -> None:
    """Show usage, hit rate, traffic, leases and the read queue of a store.

    [bold]Examples[/bold]

    hostless kv stat

    watch -n 1 hostless kv stat --store host:7030
    """

    async def look(client: "StoreClient") -> "StoreStats":
        return await client.stats()

    stats = ask(store, look)
    if as_json:
        typer.echo(json.dumps({field.name: getattr(stats, field.name) for field in stats.DESCRIPTOR.fields}))
    else:
        terminal().print(tables.of_stats(stats))


@kv.command()
def verify(store: Address = "") -> None:
    """Read every stored block and check it; a broken one is dropped, with what hangs on it.

    The store serves on meanwhile; reads of others get slower. Exit code 0: all is whole. 1: something was broken.
    """

    async def check(client: "StoreClient") -> tuple[int, int, list[bytes]]:
        checked, read, broken = 0, 0, list[bytes]()
        total = (await client.stats()).bytes
        columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            async for reply in client.verify():
                checked, read = checked + reply.checked, read + reply.bytes
                broken += reply.broken
                bar.update(task, completed=read)
        return checked, read, broken

    checked, read, broken = ask(store, check)
    for key in broken:
        typer.echo(f"broken, dropped: {key.hex()}")
    typer.echo(f"{checked} blocks, {size(read)} read, {len(broken)} broken")
    raise typer.Exit(1 if broken else 0)


@kv.command()
def gc(
    free: Annotated[str, typer.Argument(help="Room to have afterwards: 2GiB, 500m, or a share of all: 25%.")],
    store: Address = "",
) -> None:
    """Evict, least recently used first, until so much room is free. What is leased or kept stays.

    [bold]Examples[/bold]

    hostless kv gc 10GiB

    hostless kv gc 100%        # empty the store

    Exit code 1: not so much may go now.
    """

    number = free.strip()
    percent = number.endswith("%")
    asked = parse_size(number.removesuffix("%"))

    async def collect(client: "StoreClient") -> tuple[int, int, int]:
        capacity = (await client.stats()).capacity_bytes
        wanted = capacity * asked // 100 if percent else asked
        if wanted > capacity:
            raise UsageError(f"{free} is more than the {size(capacity)} that the store has", "100% empties it")
        reply = await client.collect(wanted)
        return reply.blocks, reply.free_bytes, wanted

    blocks, room, wanted = ask(store, collect)
    typer.echo(f"{blocks} blocks evicted; {size(room)} are free")
    raise typer.Exit(0 if room >= wanted else 1)


@kv.command()
def drain(
    store: Address = "",
    wait: Annotated[float, typer.Option(help="Seconds that readers and writers have to end.", min=0)] = 30.0,
    resume: Annotated[bool, typer.Option("--resume", help="Take leases and blocks again.")] = False,
) -> None:
    """Have a store take no more leases and blocks, before it is taken away. Lookups miss; what is leased is served.

    [bold]Examples[/bold]

    hostless kv drain --store host:7030 && systemctl stop hostless-kvstore

    hostless kv drain --resume

    Exit code 1: leases or writers' places are left after the time.
    """

    async def ask_to(client: "StoreClient") -> tuple[int, int]:
        return await client.drain(0 if resume else wait, resume)

    leases, places = ask(store, ask_to)
    if resume:
        typer.echo("takes leases and blocks again")
        return
    typer.echo(f"draining; {leases} leases and {places} blocks on their way in are left")
    raise typer.Exit(1 if leases or places else 0)
