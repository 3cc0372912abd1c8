"""In: a config and its data. Out: what training will take: epochs and memory."""
