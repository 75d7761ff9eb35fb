"""What all tests share."""

import pytest
from hypothesis import settings

from services.cli.models.catalogue import DEFAULT
from services.common.paths import models_dir

# Examples are not timed: a busy machine must not fail a test. They are the same each time, so that a test which fails
# does so by what was changed; --hypothesis-profile=search draws others, and that is how to look for more.
settings.register_profile("hostless", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("hostless")

_MODEL = models_dir() / DEFAULT.model_id / DEFAULT.filename


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("model") and not _MODEL.exists():
        pytest.skip(f"needs the default model in {_MODEL.parent}: hostless pull")
