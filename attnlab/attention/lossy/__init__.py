"""Caches that lose something: they hold fewer bits, or fewer tokens, than what was written. For trained
models.
"""
