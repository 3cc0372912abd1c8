"""Pointwise functions (score, b, h, q_pos, kv_pos) -> score, in the order of the config, before the mask."""
