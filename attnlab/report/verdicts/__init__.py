"""What a report decides: runs go in, claims with verdicts come out."""
