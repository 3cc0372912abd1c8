"""Pointwise functions (score, b, h, q_idx, kv_idx) -> score, applied in config order, before the mask."""
