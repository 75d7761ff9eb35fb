"""What is compared: from one read path without layerwise prefill to DualPath, and the oracle above them all."""

from dataclasses import dataclass, replace

from services.global_scheduler.policy.parameters import Parameters

TUNED = Parameters(alpha_tokens=1 << 18, beta_tokens=1 << 20, max_waiting=1 << 24)
"""Set by hand for the clusters of docs/simulator.md; `hostless plan` searches for a given one."""


@dataclass(frozen=True)
class System:
    """A policy of the live scheduler, and how its engines move KV."""

    name: str
    policy: str
    layerwise: bool = True  # D6; without it prefill HBM holds whole contexts, loaded before a step computes
    free_io: bool = False  # no transfer takes time
    parameters: Parameters = TUNED
    held_bytes: float = 0  # DRAM of a decode engine for contexts of earlier turns, which are not read again there

    def tuned(self, alpha_tokens: int, beta_tokens: int) -> "System":
        parameters = replace(self.parameters, alpha_tokens=alpha_tokens, beta_tokens=beta_tokens)
        return replace(self, parameters=parameters)


BASIC = System("basic", "basic", layerwise=False)
LAYERWISE = System("layerwise", "basic")
ROUND_ROBIN = System("dualpath-rr", "dualpath_round_robin")
DUALPATH = System("dualpath", "dualpath")
SPLIT = System("split", "dualpath", parameters=replace(DUALPATH.parameters, split_reads=True))
REUSE = replace(
    DUALPATH, name="reuse", parameters=replace(DUALPATH.parameters, local_reuse=True), held_bytes=32 * 2**30
)
ORACLE = System("oracle", "dualpath", free_io=True)

SYSTEMS = {system.name: system for system in (BASIC, LAYERWISE, ROUND_ROBIN, DUALPATH, SPLIT, REUSE, ORACLE)}


def system_named(name: str) -> System:
    """Raises ValueError that names the systems there are."""
    if name not in SYSTEMS:
        raise ValueError(f"system {name!r} is not known; there are: {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
