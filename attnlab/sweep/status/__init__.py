"""How the runs of a plan stand, and what they will take: read from the store and its locks."""
