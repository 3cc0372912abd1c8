"""Weights in and out of Hugging Face folders: a table per family, one way to walk it."""
