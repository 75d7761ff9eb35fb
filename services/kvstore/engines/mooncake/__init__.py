"""Blocks in the memory of many machines: a pool kept by Mooncake Store."""
