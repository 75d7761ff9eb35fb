"""Moves KV blocks between an engine's pages and the store, beside the scheduler, never on the token path (D4).

The scheduler core writes orders (step.hpp's KvOrder); this package takes them, answers every load in
time, and lets go of every stored page soon. A store that is away, full or frozen costs later misses.
"""

from services.gpu_backend.kv_agent.agent import KvAgent
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.loopback_pages import LoopbackPages
from services.gpu_backend.kv_agent.pages import HostPages, Pages
from services.gpu_backend.kv_agent.peers import Peers
from services.gpu_backend.kv_agent.prompts import RingPrompts
from services.gpu_backend.kv_agent.settings import AgentSettings

__all__ = [
    "AgentCounters",
    "AgentSettings",
    "HostPages",
    "KvAgent",
    "KvLink",
    "LoopbackPages",
    "Pages",
    "Peers",
    "RingPrompts",
]
