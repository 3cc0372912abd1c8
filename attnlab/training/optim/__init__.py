"""Optimizers: each takes a model with its table of learning rates and covers all of its parameters."""
