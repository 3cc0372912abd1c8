"""Verdicts of a report on the runs, computed from those runs alone."""
