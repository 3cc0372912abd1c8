"""`python -m attnlab new`: templates of extensions. Imports no torch."""
