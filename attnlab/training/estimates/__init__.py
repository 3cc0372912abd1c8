"""Estimates of training from a config and its data: epochs and memory."""
