"""Engines in turn: what a scheduler that looks at no load would do."""

from services.global_scheduler.policy.choosers import InTurn
from services.global_scheduler.policy.core import PooledPolicy
from services.global_scheduler.policy.decode_choice import AtOnce
from services.global_scheduler.policy.parameters import DEFAULTS, Parameters
from services.global_scheduler.policy.pool import Choices
from services.global_scheduler.policy.read_path import Alternating, InTurns, PathChoice, halves, prefill_side


class RoundRobin(PooledPolicy):
    """Engines in turn; none waits. The prefill side reads."""

    name = "round_robin"

    def __init__(self, parameters: Parameters = DEFAULTS) -> None:
        super().__init__(lambda: Choices(InTurn(), InTurn(), AtOnce(InTurn()), prefill_side), parameters)


class DualPathRoundRobin(PooledPolicy):
    """Two paths, engines and paths in turn; none waits. With `split_reads` every third request is read on both sides, a
    half each (D15)."""

    name = "dualpath_round_robin"

    def __init__(self, parameters: Parameters = DEFAULTS) -> None:
        def path() -> PathChoice:
            sides = Alternating()
            return InTurns(sides, sides, halves) if parameters.split_reads else sides

        super().__init__(lambda: Choices(InTurn(), InTurn(), AtOnce(InTurn()), path()), parameters)
