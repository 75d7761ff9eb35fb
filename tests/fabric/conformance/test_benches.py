"""Says which transports were not tested on this machine, once."""

import pytest

from tests.fabric.conformance.benches import BENCHES, Bench


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.label)
def test_is_tested(bench: Bench) -> None:
    if why := bench.missing():
        pytest.skip(f"transport {bench.label} was not tested: {why}")
