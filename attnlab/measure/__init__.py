"""Measurements besides the loss: memory, time, attention maps; one measurement per file."""
