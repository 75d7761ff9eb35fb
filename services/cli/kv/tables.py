"""A store's contents and figures for a terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from services.cli.kv.store import size

if TYPE_CHECKING:  # it takes its time to load, which only these commands should pay
    from services.kvstore.client import StoredBlock, StoreStats


def as_dict(block: "StoredBlock") -> dict[str, object]:
    return {
        "key": block.key.hex(),
        "parent": block.parent.hex(),
        "root": block.root.hex(),
        "position": block.position,
        "bytes": block.bytes,
        "pins": block.pins,
    }


def of_roots(by_root: "Mapping[bytes, Sequence[StoredBlock]]", limit: int) -> Table:
    """The largest first."""
    table = _table("root", "blocks", "bytes", "longest chain", "pinned")
    largest = sorted(by_root.items(), key=lambda pair: -sum(block.bytes for block in pair[1]))
    for root, blocks in largest[: limit or None]:
        table.add_row(
            root.hex(),
            f"{len(blocks):,}",
            size(sum(block.bytes for block in blocks)),
            f"{1 + max(block.position for block in blocks):,}",
            f"{sum(1 for block in blocks if block.pins):,}",
        )
    return _cut(table, len(largest), limit)


def of_blocks(blocks: "Sequence[StoredBlock]", limit: int) -> Table:
    table = _table("key", "position", "bytes", "pins", "parent")
    for block in blocks[: limit or None]:
        parent = block.parent.hex()[:12] if block.position else ""
        table.add_row(block.key.hex(), f"{block.position:,}", size(block.bytes), str(block.pins or ""), parent)
    return _cut(table, len(blocks), limit)


def of_stats(stats: "StoreStats") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    used = stats.bytes / stats.capacity_bytes
    hits = f", {stats.keys_hit / stats.keys_asked:.1%} of {stats.keys_asked:,} keys hit" if stats.keys_asked else ""
    per_block = f", {stats.index_bytes / stats.blocks:.0f} B a block" if stats.blocks else ""
    for name, value in (
        ("engine", stats.engine + (", draining" if stats.draining else "")),
        ("stored", f"{stats.blocks:,} blocks, {size(stats.bytes)} of {size(stats.capacity_bytes)} ({used:.1%})"),
        ("roots", f"{stats.roots:,}; {stats.kept_blocks:,} blocks kept"),
        ("lookups", f"{stats.lookups:,}{hits}"),
        ("read", f"{stats.blocks_read:,} blocks, {size(stats.bytes_read)}"),
        ("written", f"{stats.blocks_written:,} blocks, {size(stats.bytes_written)}"),
        ("gone", f"{stats.blocks_evicted:,} evicted, {stats.blocks_corrupt:,} broken"),
        ("adopted", f"{stats.blocks_adopted:,} of other stores"),
        (
            "now",
            f"{stats.leases:,} leases, {stats.tickets:,} on their way in, {stats.read_queue_tokens:,} tokens to read",
        ),
        ("index", f"{size(stats.index_bytes)}{per_block}"),
    ):
        table.add_row(name, value)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=None, header_style="dim", pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _cut(table: Table, total: int, limit: int) -> Table:
    if limit and total > limit:
        table.caption = f"{limit} of {total:,}; --limit 0 shows all"
    return table
