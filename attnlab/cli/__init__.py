"""Command-line interface: entry point, Hydra runner, one module per verb, benchmarks.

No other package of attnlab imports this one.
"""
