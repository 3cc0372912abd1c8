"""Tables of a report next to its verdicts: rows of plain values, computed from the runs."""
