"""How long the tests of chance search. `HOSTLESS_TEST_EFFORT=10 pytest tests/kvstore` does ten times as much as a run
in CI; crash.py, slow_readers.py and bench/store_crash.py take numbers of rounds."""

import os

EFFORT = int(os.environ.get("HOSTLESS_TEST_EFFORT", "1"))
