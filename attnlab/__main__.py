"""Entry point of `python -m attnlab`."""

import signal
import sys

from attnlab.cli.exit_handling import exit_on_interrupt, open_standard_streams

open_standard_streams()
with exit_on_interrupt():
    from attnlab.cli.main import main

if __name__ == "__main__":
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit handlers would print a traceback
    sys.exit(status)
