class Heads:
    """A `_target_` whose source code enters the run id."""
