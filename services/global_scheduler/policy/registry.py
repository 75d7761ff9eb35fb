"""Policies by the name that the setting `policy` gives."""

from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.policy.state import Policy

POLICIES: dict[str, type[Policy]] = {LeastTokens.name: LeastTokens}


def make_policy(name: str) -> Policy:
    """Raises ValueError that names the known policies."""
    if name not in POLICIES:
        raise ValueError(f"policy {name!r} is not known; known: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
