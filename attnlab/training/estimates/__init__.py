"""In: a config and its data. Out: what training will take: epochs, memory, and time by a trial."""
