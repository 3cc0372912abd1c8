"""One module per verb, each with `main(options) -> exit status`."""
