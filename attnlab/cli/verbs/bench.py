"""`python -m attnlab bench`: the benchmarks of a clone, in `benchmarks/` beside this package."""

import argparse
import importlib
import sys
from pathlib import Path

import attnlab
from attnlab.errors import InvalidConfig


def main(options: argparse.Namespace) -> int:
    """Run `benchmarks/bench_command.py` of the clone; return its exit status."""
    clone = Path(attnlab.__file__).parent.parent
    if not (clone / "benchmarks" / "bench_command.py").is_file():
        raise InvalidConfig(
            "bench: the installed package has no benchmarks: run the command in a clone of attnlab"
        )
    sys.path.insert(0, str(clone))  # before a folder `benchmarks` of the user
    return int(importlib.import_module("benchmarks.bench_command").main(options))
