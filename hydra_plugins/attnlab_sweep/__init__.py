"""Hydra plugins: the sweeper `attnlab` and its launchers. Their implementation is in `attnlab.sweep`."""
