"""Stateful modules in addition to attention: convolutions over the last inputs, sums over all of them."""
