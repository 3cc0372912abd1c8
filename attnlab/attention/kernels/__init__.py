"""Implementations of the same attention, one kernel per module. No kernel falls back to another."""
