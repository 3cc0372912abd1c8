"""Drawn tasks of the literature, one recipe a file: each asks for one ability, as its paper does."""
