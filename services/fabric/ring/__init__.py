"""The ring (B7): the one structure that front ends and an engine share. docs/ring.md tells its rules."""

from services.fabric._ring import EngineState, Finish, LeaseState, Owner, RecordFlags, SlotState
from services.fabric.ring.client import EngineStatus, RingClient
from services.fabric.ring.layout import NotARing, RingGeometry, Share
from services.fabric.ring.owner import RingOwner

__all__ = [
    "EngineState",
    "EngineStatus",
    "Finish",
    "LeaseState",
    "NotARing",
    "Owner",
    "RecordFlags",
    "RingClient",
    "RingGeometry",
    "RingOwner",
    "Share",
    "SlotState",
]
