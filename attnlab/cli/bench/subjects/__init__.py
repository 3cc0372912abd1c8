"""Subjects of `bench`, one module each; `attnlab.cli.bench` documents their interface."""
