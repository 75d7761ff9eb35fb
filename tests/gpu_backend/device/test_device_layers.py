"""The agent's side of steps on a GPU, without one: it hears by a thread, and may leave and come again."""

from typing import cast

import numpy as np

from services.gpu_backend import _scheduler
from services.gpu_backend.device.device_layers import DeviceLayers
from services.gpu_backend.device.pass_tables import PassTables
from services.gpu_backend.layers import Pass
from tests.waiting import wait_until

LANES = 4


class Told:
    """PassTables that tell what they are given."""

    idle = True

    def __init__(self) -> None:
        self.news: list[Pass] = []

    def look(self) -> list[Pass]:
        news, self.news = self.news, []
        return news


def test_one_who_left_may_listen_again() -> None:
    tables = Told()
    layers = DeviceLayers(np.zeros(8 * LANES, np.uint8), 0, LANES, cast(PassTables, tables))
    for turn in range(2):
        heard: list[Pass] = []
        layers.listen(heard.extend)
        layers.attend(True)
        layers.open(1)
        one = Pass(turn, 1, 1, 0, 64, True, np.zeros(1, np.uint32))
        tables.news.append(one)
        wait_until(lambda heard=heard: bool(heard))  # type: ignore[misc]
        layers.listen(None)
        assert heard == [one]
        assert layers.word(1) == _scheduler.LAYERS_FAILED, "who waits for it has waited in vain"
