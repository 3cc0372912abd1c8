"""One experiment at several places. In: the reports of each; out: what they say together."""
