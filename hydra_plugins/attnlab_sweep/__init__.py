"""Hydra's way in: the sweeper `attnlab` and the launcher `pool`. All that they do is in `attnlab.sweep`."""
