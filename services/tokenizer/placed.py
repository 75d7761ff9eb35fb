"""Where a request was placed: its engines, its hit, and who reads what of it."""

from dataclasses import dataclass

from hostless.v1 import scheduler_pb2
from services.common.keys import BLOCK_TOKENS
from services.tokenizer.kv_hits import KvHit
from services.tokenizer.live_engines import Tried


@dataclass(frozen=True, slots=True)
class Placed:
    """A request on its engines, for one attempt. `hit` is leased; `at_ns`: when it was placed."""

    where: scheduler_pb2.Placement
    hit: KvHit
    at_ns: int

    @property
    def engine(self) -> scheduler_pb2.EngineInfo:
        """That serves, or prefills."""
        return self.where.engine

    @property
    def shared(self) -> bool:
        """Whether another engine goes on after the first token."""
        return bool(self.where.HasField("decode"))

    @property
    def decode(self) -> scheduler_pb2.EngineInfo:
        return self.where.decode

    @property
    def reads(self) -> tuple[range, range]:
        """Blocks of the hit that the engine that prefills, and the one that decodes, read from the store (D1, D2, D15),
        or hold. The hit may have become shorter since it was placed."""
        blocks = self.hit.cached_tokens // BLOCK_TOKENS
        match self.where.path:
            case scheduler_pb2.READ_PATH_DECODE:
                here = 0
            case scheduler_pb2.READ_PATH_SPLIT:
                here = min((self.where.reused_tokens + self.where.prefill_read_tokens) // BLOCK_TOKENS, blocks)
            case _:
                here = blocks
        return range(here), range(here, blocks)

    @property
    def engines(self) -> list[scheduler_pb2.EngineInfo]:
        return [self.engine, self.decode] if self.shared else [self.engine]

    @property
    def name(self) -> str:
        return " and ".join(info.engine_id for info in self.engines)

    @property
    def blame(self) -> Tried:
        return frozenset((info.engine_id, info.epoch) for info in self.engines)
