"""Memory, FLOPs and time of serving a model, counted from its config. Never imports torch."""
