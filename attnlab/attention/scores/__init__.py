"""Pointwise functions (score, b, h, i, j) -> score, applied in the order of the config before the mask."""
