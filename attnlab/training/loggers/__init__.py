"""Loggers besides a run's own files, which remain the result."""
