"""Compute calibration: express a difference in loss as an amount of training."""
