"""The link that this process's connections share, and what it gives to whom (D8)."""

from services.fabric._tcp import ArbiterSettings, Link

__all__ = ["PROCESS_LINK", "ArbiterSettings", "Link"]

PROCESS_LINK = Link(ArbiterSettings())
"""MODEL to KV 99:1, and KV delays MODEL by 0.3 ms at most, as far as it can be known here."""
