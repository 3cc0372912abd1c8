"""Plan a command: all runs of its reports, composed, checked and named. Never imports torch."""
