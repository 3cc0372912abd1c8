"""`python -m attnlab new`: templates of extensions. Imports no torch."""

TEMPLATE_KINDS = ("heads", "mask", "score", "mixer", "epilogue", "task", "logger", "experiment")
