"""What a report lays out beside its verdicts: rows of plain values, computed from the runs."""
