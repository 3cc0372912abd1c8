"""Execution of runs on this machine: worker slots, one process per run, and exit records."""
