"""DualPath's scheduler, and the same with one path, which it is measured against."""

from services.global_scheduler.policy.choosers import InOrder
from services.global_scheduler.policy.core import PooledPolicy
from services.global_scheduler.policy.decode_choice import DecodeChoice
from services.global_scheduler.policy.parameters import DEFAULTS, Parameters
from services.global_scheduler.policy.pool import Choices
from services.global_scheduler.policy.prefill_choice import PrefillChoice
from services.global_scheduler.policy.read_path import PathChoice, prefill_side, shorter_queue, split


class Basic(PooledPolicy):
    """One path: the prefill side reads. Engines as D10 and D11 choose them, but with no eye on read queues."""

    name = "basic"

    def __init__(self, parameters: Parameters = DEFAULTS) -> None:
        def choices() -> Choices:
            return Choices(InOrder(), PrefillChoice(float("inf"), parameters.beta_tokens), DecodeChoice(), prefill_side)

        super().__init__(choices, parameters)


class DualPath(PooledPolicy):
    """D10, D11 and D12 to the letter, with `split_reads` D15 for D12, as long as no engine holds anything of a hit."""

    name = "dualpath"

    def __init__(self, parameters: Parameters = DEFAULTS) -> None:
        path: PathChoice = split if parameters.split_reads else shorter_queue

        def choices() -> Choices:
            prefill = PrefillChoice(parameters.alpha_tokens, parameters.beta_tokens)
            return Choices(InOrder(), prefill, DecodeChoice(), path)

        super().__init__(choices, parameters)
