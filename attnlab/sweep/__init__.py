"""Carrying out an experiment: plan all its runs, skip what is done, train the rest, report.

Only `worker`, `checker` and what they start import torch; planning a sweep never does.
"""
