"""In goes a resolved config, out come models, text and checkpoints. Imports attention, data and the store."""
