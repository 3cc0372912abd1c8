"""Where text comes from: settings in, a `Corpus` out. Its text is read only where no tokens are kept."""
