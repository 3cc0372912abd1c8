class Heads:
    """A `_target_` whose source is part of a run's id."""
