"""What is typed: the entry, Hydra's line, a file per verb, the benches. Nothing imports this room."""
