"""Blocks on this machine's own disks: append-only segments, past the page cache, at the disks' speed."""

from services.kvstore.engines.local.engine import LocalEngine
from services.kvstore.engines.local.options import LocalOptions

__all__ = ["LocalEngine", "LocalOptions"]
