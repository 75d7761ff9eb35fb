"""The index of stored blocks (native_index/). Keys are bytes, 16 a key; pins are opaque bytes, 4 a block."""

class BlockIndex:
    """Blocks by key, with pins, recency and exact usage in bytes. Not for several threads.

    A block whose position is above 0 has its parent here; `used` never exceeds `capacity`, nor a root's share
    `root_quota`. A root is the key before position 0: one model, layout and tenant.
    """

    def __init__(self, capacity: int, root_quota: int) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def used(self) -> int:
        """`stored` blocks and `reserved` room for blocks on their way in."""

    @property
    def roots(self) -> int: ...
    @property
    def memory(self) -> int:
        """Bytes that the index itself takes."""

    def __len__(self) -> int: ...
    def __contains__(self, key: bytes) -> bool: ...
    def get(self, key: bytes) -> tuple[bytes, bytes, int, int] | None:
        """(key, parent, position, length)."""

    def hit(self, keys: bytes) -> int:
        """Length of the longest run of `keys`, from the first, that is stored; it is now the most recently used."""

    def pin_run(self, keys: bytes) -> bytes:
        """As `hit`, and keeps the run from eviction until `unpin` of what this returns."""

    def unpin(self, pins: bytes) -> None: ...
    def pinned(self, pins: bytes, first: int, count: int) -> list[tuple[bytes, bytes, int, int] | None]:
        """What is pinned; None in place of a block that was lost meanwhile. Raises IndexError."""

    def may_follow(self, parent: bytes, position: int) -> bool:
        """Whether the parent of a block at `position` is stored, if it must be."""

    def root_of(self, parent: bytes, position: int) -> bytes | None: ...
    def add(self, key: bytes, parent: bytes, position: int, length: int, size: int) -> None:
        """Makes a block visible; its room must be free. Raises ValueError."""

    def reserve(self, size: int, root: bytes) -> list[bytes] | None:
        """Room for `size` bytes. Keys evicted for it, children first, whose bytes must go before the room is used;
        or None, and then nothing was evicted: larger than the store or the root's quota, or the rest is pinned."""

    def unreserve(self, size: int, root: bytes) -> None: ...
    def evict(self, size: int) -> list[bytes]:
        """Evicts `size` bytes or a little more, children first, or as much as is not pinned."""

    def drop(self, key: bytes) -> list[bytes]:
        """Removes a lost block and all that hangs on it, pinned or not; children before parents."""

    def rebuild(self, records: bytes) -> list[bytes]:
        """Takes in what a scan found, least recently used first: 48 bytes each, key, parent, position u32, length u32,
        size u32, 0 u32. Returns the keys that are no use (no parent) or don't fit, children before parents."""

    def page(self, cursor: int, limit: int) -> tuple[int, list[tuple[bytes, bytes, int, int, int, bytes]]]:
        """Blocks, in no order, as (key, parent, position, length, pins, root); 0 as the next cursor ends it."""

    def check(self) -> None:
        """Raises RuntimeError unless what the class promises holds and the sums are right."""
