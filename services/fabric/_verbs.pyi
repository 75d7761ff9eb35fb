"""Types of the native module `_verbs` (native/verbs_module.cpp), which is built where libibverbs' headers are.

A status is 0, an ibv_wc_status, or one of the three below. What libibverbs refuses raises OSError.
"""

from typing import Any

from services.fabric.operations import Bytes

LATE: int
LOST: int
REFUSED: int

class Memory:
    local_key: int
    remote_key: int
    def close(self) -> None: ...

class Device:
    def __init__(self, name: str) -> None: ...
    active: bool
    lid: int
    mtu: int
    reads: int
    def gid(self, index: int) -> bytes: ...
    def register(self, address: int, length: int, access: int) -> Memory: ...
    def register_dmabuf(self, file: int, offset: int, length: int, access: int) -> Memory: ...

class Pair:
    def __init__(self, device: Device, access: int, staging_bytes: int) -> None: ...
    number: int
    def connect(self, device: Device, how: dict[str, Any]) -> None: ...
    def move(
        self, write: bool, offsets: Bytes, lengths: Bytes, flat: Bytes, remote: int, length: int, key: int
    ) -> int: ...
    def swap(
        self, offsets: Bytes, expected: Bytes, desired: Bytes, found: Bytes, remote: int, length: int, key: int
    ) -> int: ...
    def post(self, batch: list[tuple[int, int, Bytes, int, int]], remote: int, length: int, key: int) -> int: ...
    def lose(self) -> None: ...
    def close(self) -> None: ...
