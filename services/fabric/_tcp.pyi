"""Types of the native module `_tcp` (native/tcp_module.cpp)."""

import enum

from services.fabric.operations import Bytes

READ: int
WRITE: int
SWAP: int
ADD: int
STALE: int
WRONG_KEY: int
NO_RIGHT: int

class Lost(ConnectionError): ...

class Refused(PermissionError):
    """Its argument is the owner's status: STALE, WRONG_KEY, NO_RIGHT or another."""

class Traffic(enum.IntEnum):
    MODEL = ...
    KV = ...

class ArbiterSettings:
    """Raises ValueError for what makes no sense. `wait_s`: the delay that KV may cause."""

    def __init__(
        self,
        model_weight: int = 99,
        kv_weight: int = 1,
        wait_s: float = 0.0003,
        least_chunk: int = 2048,
        most_window: int = 8388608,
    ) -> None: ...
    @property
    def model_weight(self) -> int: ...
    @property
    def kv_weight(self) -> int: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def least_chunk(self) -> int: ...
    @property
    def most_window(self) -> int: ...

class Arbiter:
    """Who goes first on a link (native/arbiter.hpp). Pure, and for one thread."""

    def __init__(self, settings: ArbiterSettings) -> None: ...
    @property
    def window(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    def under_way(self, traffic: Traffic) -> int: ...
    def waiting(self, traffic: Traffic) -> int: ...
    def ask(self, traffic: Traffic, bytes: int) -> None: ...
    def withdraw(self, traffic: Traffic, place: int) -> None: ...
    def grant(self) -> Traffic | None: ...
    def done(self, traffic: Traffic, bytes: int) -> None: ...
    def measured(self, delay_s: float, bytes: int) -> None: ...

class Link:
    """An arbiter that threads share."""

    def __init__(self, settings: ArbiterSettings) -> None: ...
    @property
    def window(self) -> int: ...
    @property
    def chunk(self) -> int:
        """Bytes that KV should take at a time."""

    @property
    def quiet(self) -> bool:
        """So little of MODEL is under way that what KV waits for is KV's own doing."""

    def take(self, traffic: Traffic, bytes: int, timeout_s: float) -> bool:
        """Waits for a turn; False if it does not come in time. What was taken is to be done()."""

    def done(self, traffic: Traffic, bytes: int, delay_s: float) -> None:
        """`delay_s`: over what it takes on an idle link; below 0: not known."""

class Agent:
    """The owner's end: a thread that serves. Raises OSError when the address can't be listened on."""

    def __init__(self, host: str, port: str) -> None: ...
    @property
    def port(self) -> int: ...
    @property
    def connections(self) -> int: ...
    def publish(self, generation: int, rkey: int, rights: int, memory: Bytes) -> None: ...
    def end(self, generation: int) -> None: ...
    def close(self) -> None: ...

class Channel:
    """A peer's end. Raises Lost, Refused, IndexError or ValueError. Not for two threads at a time."""

    def __init__(
        self,
        host: str,
        port: str,
        generation: int,
        rkey: int,
        length: int,
        rights: int,
        traffic_class: int,
        bulk: bool,
        link: Link,
        silence_s: float,
    ) -> None: ...
    def post(self, operations: list[tuple[int, int, Bytes | int, int]]) -> list[int | None]: ...
    def gather(self, offsets: Bytes, lengths: Bytes, out: Bytes) -> None: ...
    def scatter(self, offsets: Bytes, lengths: Bytes, data: Bytes) -> None: ...
    def swap_many(self, offsets: Bytes, expected: Bytes, desired: Bytes, found: Bytes) -> None: ...
    def interrupt(self) -> None:
        """For any thread: what runs, and all that comes, raises Lost."""

    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
