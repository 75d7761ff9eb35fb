"""Policies by the name that the setting `policy` gives."""

from collections.abc import Callable

from services.global_scheduler.policy.dualpath import Basic, DualPath
from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.policy.parameters import DEFAULTS, Parameters
from services.global_scheduler.policy.round_robin import DualPathRoundRobin, RoundRobin
from services.global_scheduler.policy.state import Policy

POLICIES: dict[str, Callable[[Parameters], Policy]] = {
    kind.name: kind for kind in (LeastTokens, RoundRobin, Basic, DualPathRoundRobin, DualPath)
}


def make_policy(name: str, parameters: Parameters = DEFAULTS) -> Policy:
    """Raises ValueError that names the known policies."""
    if name not in POLICIES:
        raise ValueError(f"policy {name!r} is not known; known: {', '.join(sorted(POLICIES))}")
    return POLICIES[name](parameters)
