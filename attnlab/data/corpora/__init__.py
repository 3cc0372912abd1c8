"""Loaders of corpora: settings to a `Corpus`, whose text is read only if no tokens are cached."""
