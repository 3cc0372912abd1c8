"""One run, from its spec to its record. Knows nothing of sweeps and reports."""
