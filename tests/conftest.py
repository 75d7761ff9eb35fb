"""What all tests share."""

from hypothesis import settings

# Examples are not timed: a busy machine must not fail a test.
settings.register_profile("hostless", deadline=None, print_blob=True)
settings.load_profile("hostless")
