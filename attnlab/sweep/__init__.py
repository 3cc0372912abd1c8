"""Sweeps: plan all runs of an experiment, skip finished runs, train the others, report.

Only the worker processes import torch; planning a sweep never does.
"""
