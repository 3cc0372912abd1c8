"""In goes a model with its table of rates, out comes one torch optimiser over all of its parameters."""
