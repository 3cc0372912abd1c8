"""Runs on this machine: slots, a process for each run, and how it ended."""
