"""Tasks, and the data module that feeds the batches of any task to the trainer."""
