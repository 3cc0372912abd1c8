"""Import and export of Hugging Face checkpoints: one table per family, one conversion for all."""
