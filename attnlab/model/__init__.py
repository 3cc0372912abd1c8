"""Models, generated text and checkpoints from a resolved config. Imports attention, data and the store."""
