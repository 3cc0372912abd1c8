"""Kinds of heads, one per module: their projections, cached state, keys and values."""
