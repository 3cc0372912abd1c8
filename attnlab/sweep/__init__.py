"""Carrying out an experiment: plan all its runs, skip what is done, train the rest, report.

Only the processes that it starts import torch; planning a sweep never does.
"""
