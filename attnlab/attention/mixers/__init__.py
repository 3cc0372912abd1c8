"""Mixers that replace attention by a memory of fixed size, one per module."""
