"""From finished runs to a report that can be read in ten seconds, or for an hour. Never imports torch."""
