"""What of a prompt the KV store holds: looked up in bounded time, leased, released when the request ends."""

import logging
from dataclasses import dataclass

from services.common.keys import BLOCK_TOKENS, block_keys, marks, root_key
from services.kvstore.client import StoreClient, StoreUnavailable
from services.tokenizer.encoder import TokenIds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvHit:
    """`cached_tokens` of the prompt's start are stored, whole blocks, and leased; 0 and 0: none. `marks`: of their
    chain, by which engines that hold them are found."""

    root: bytes
    cached_tokens: int = 0
    lease_id: int = 0
    marks: bytes = b""


class KvHits:
    """Without a client every prompt is a miss. A store that is away or late is a miss, never an error."""

    def __init__(self, client: StoreClient | None, lookup_s: float, lease_s: float) -> None:
        self._client = client
        self._lookup_s = lookup_s
        self._lease_s = lease_s
        self.lookups = self.failures = 0

    def keys(self, prompt: TokenIds, kv_layout: str, tenant: str) -> tuple[bytes, list[bytes]]:
        """Chain root, and keys of the blocks that could be loaded: at least one prompt token is always computed.

        Hashes the whole prompt; belongs off the event loop.
        """
        root = root_key(kv_layout, tenant)
        if self._client is None:
            return root, []
        return root, block_keys(root, prompt[: (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS])

    async def lookup(self, root: bytes, keys: list[bytes]) -> KvHit:
        if self._client is None or not keys:
            return KvHit(root)
        self.lookups += 1
        try:
            hit = await self._client.lookup(keys, self._lease_s, self._lookup_s)
        except StoreUnavailable as error:
            self.failures += 1
            log.warning("the KV store did not answer", extra={"reason": str(error)})
            return KvHit(root)
        return KvHit(root, hit.hit * BLOCK_TOKENS, hit.lease_id, marks(keys[: hit.hit]))

    def release(self, hit: KvHit) -> None:
        """At once, without waiting; if it fails the store frees by itself when the lease runs out."""
        if self._client is not None and hit.lease_id:
            self._client.release_later(hit.lease_id)
