"""Each request to the engine with the fewest tokens on it."""

from services.global_scheduler.policy.choosers import InOrder
from services.global_scheduler.policy.core import PooledPolicy
from services.global_scheduler.policy.decode_choice import AtOnce
from services.global_scheduler.policy.parameters import DEFAULTS, Parameters
from services.global_scheduler.policy.pool import Choices
from services.global_scheduler.policy.read_path import prefill_side


class LeastTokens(PooledPolicy):
    """Each request to the engine of each role with the fewest tokens; none waits. The prefill side reads."""

    name = "least_tokens"

    def __init__(self, parameters: Parameters = DEFAULTS) -> None:
        super().__init__(lambda: Choices(InOrder(), InOrder(), AtOnce(InOrder()), prefill_side), parameters)
