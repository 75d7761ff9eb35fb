"""How many examples the property tests of encoding draw: few in CI, HOSTLESS_EXAMPLES in a long run."""

import os


def examples(usual: int) -> int:
    return int(os.environ.get("HOSTLESS_EXAMPLES", usual))
