"""One run, from its config to its result. Does not depend on sweeps or reports."""
