"""What a model is trained and scored on: tasks, and the data module that feeds any of them to a trainer."""
