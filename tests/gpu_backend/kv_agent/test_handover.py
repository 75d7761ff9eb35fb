"""A hand-over hears of passes from the engine's thread, at any moment."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from services.gpu_backend.kv_agent.handover import Handover, PassLost
from services.gpu_backend.layers import Pass


@dataclass(slots=True, eq=False)
class Racing(Pass):
    """Is computed to its end, and over, right after somebody has looked at it for the first time."""

    looked: bool = False

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name in ("computed", "over") and not object.__getattribute__(self, "looked"):
            self.looked, self.computed, self.over = True, 5, True
        return found


def passes(kind: type[Pass]) -> Pass:
    return kind(1, 1, 0, 0, 100, True, np.arange(2, dtype=np.uint32), computed=4)


async def test_a_pass_that_ends_while_it_is_looked_at_is_not_lost() -> None:
    await Handover(1, 1, 0, 7).computed(passes(Racing), 4)


async def test_a_pass_that_ended_short_is_lost() -> None:
    one = passes(Pass)
    one.over = True
    await Handover(1, 1, 0, 7).computed(one, 3)
    with pytest.raises(PassLost, match="at layer 4"):
        await Handover(1, 1, 0, 7).computed(one, 4)
