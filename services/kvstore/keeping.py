"""Blocks that are kept from eviction because somebody said so: a system prompt, say, that must always hit."""

from services.common.keys import KEY_BYTES
from services.kvstore._index import BlockIndex


class Kept:
    """At most `limit` bytes of payload, so that room to evict stays. Forgotten at a restart."""

    def __init__(self, index: BlockIndex, limit: int) -> None:
        self._index, self._limit = index, limit
        self._pins: dict[bytes, tuple[bytes, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pins)

    def keep(self, keys: bytes) -> int:
        """Keeps the stored run that `keys` begin with, as far as the limit allows. Returns its blocks."""
        for count, key in enumerate(_each(keys)):
            if key in self._pins and self._index.pinned(self._pins[key][0], 0, 1) == [None]:
                self.let_go(key)  # it was lost; what is there now is another
            if key in self._pins:
                continue
            block = self._index.get(key)
            if block is None or self._bytes + block[3] > self._limit:
                return count
            self._pins[key] = self._index.pin_run(key), block[3]
            self._bytes += block[3]
        return len(keys) // KEY_BYTES

    def let_go(self, keys: bytes) -> int:
        """Idempotent. Returns how many were kept; parents stay the younger."""
        held = [self._pins.pop(key) for key in reversed(_each(keys)) if key in self._pins]
        for pins, size in held:
            self._index.unpin(pins)
            self._bytes -= size
        return len(held)


def _each(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
