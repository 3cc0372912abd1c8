import signal
import sys

from attnlab.cli.ending import nothing_to_lose

with nothing_to_lose():
    from attnlab.cli.main import main

if __name__ == "__main__":
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs at the exit would show a traceback
    sys.exit(status)
