"""One experiment at several sizes or on several corpora: from the report of each to combined results."""
