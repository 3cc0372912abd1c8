"""Loggers that mirror a run elsewhere; what is on disk is the result."""
