"""The same attention, computed in different ways, one file each. No kernel falls back to another."""
