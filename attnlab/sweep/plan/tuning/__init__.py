"""Learning rates: tuned per arm before the comparison, on seeds that the comparison lacks."""
