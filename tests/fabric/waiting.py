"""For what another thread or process does soon."""

import time
from collections.abc import Callable

PATIENCE_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    """Returns once it holds; fails when it takes too long."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)
