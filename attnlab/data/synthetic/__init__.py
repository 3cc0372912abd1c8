"""Synthetic tasks of the literature, one recipe per file; each tests one ability, as in its paper."""
