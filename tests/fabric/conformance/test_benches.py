"""Says which transports were not tested on this machine, once."""

import pytest

from tests.fabric.conformance.benches import BENCHES, Bench


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_is_tested(bench: Bench) -> None:
    if why := bench.missing():
        pytest.skip(f"transport {bench.name} was not tested: {why}")
