"""Validation before building (values and sizes), and one-line errors while building."""
