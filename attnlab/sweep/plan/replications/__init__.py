"""Replications of an experiment: on further corpora, or at the sizes of a ladder."""
