"""Effects across ladder sizes and corpora: trend, holdout prediction, scaling verdict, random effects."""
