"""Safety of a run store: ownership, references to runs, preregistrations, file digests, trusted names."""
