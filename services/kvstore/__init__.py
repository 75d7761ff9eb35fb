"""Full Blocks on disk, found by prefix (D4, D5)."""
