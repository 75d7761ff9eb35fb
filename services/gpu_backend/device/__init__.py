"""The scheduler on a GPU (B1, B3, B4): the core as a kernel, built at start, and what the host does for it."""
