"""A difference as training: a declaration and a baseline in, runs and what they tell out."""
