"""From a command line to all runs of its reports, checked and named. Never imports torch."""
