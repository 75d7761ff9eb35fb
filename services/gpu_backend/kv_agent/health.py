"""Whether the store is worth asking: after a failure it is left alone for a while."""

import logging
import time

log = logging.getLogger(__name__)


class StoreHealth:
    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._away_until = 0.0
        self._away = False

    @property
    def available(self) -> bool:
        return time.monotonic() >= self._away_until

    def failed(self, why: Exception) -> None:
        self._away_until = time.monotonic() + self._retry_s
        if not self._away:
            log.warning("the KV store is away: nothing is loaded or stored until it is back", extra={"why": str(why)})
        self._away = True

    def answered(self) -> None:
        if self._away:
            log.info("the KV store is back")
        self._away = False
