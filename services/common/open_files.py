"""How many files a process may have open."""

import resource


def allow_most() -> None:
    """As many as this process may ask for: the usual 1024 are fewer than a busy service's connections or segments."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
