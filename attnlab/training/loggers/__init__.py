"""Loggers beside a run's own records; the records on disk are the result."""
