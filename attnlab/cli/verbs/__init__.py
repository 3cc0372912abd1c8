"""One file per verb, each with `main(arguments) -> exit status`."""
