"""States and forecasts of a plan's runs, read from the run directories and their locks."""
