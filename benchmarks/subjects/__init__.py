"""Subjects of `bench`, one module each; `benchmarks` documents their interface."""
