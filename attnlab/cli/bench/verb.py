"""`python -m attnlab bench NAME [threads=N] [rounds=N] [overrides] [--json]`: the rows of one subject."""

import argparse
import importlib
import json
import sys
from dataclasses import asdict

from attnlab.cli.bench.table import table
from attnlab.cli.commands import SUBJECTS
from attnlab.cli.words import split
from attnlab.errors import Refused, nearest


def main(options: argparse.Namespace) -> int:
    """Measures, then prints: what is going on goes to stderr, the rows alone to stdout."""
    names, overrides = split(options.words)
    if len(names) != 1 or names[0] not in SUBJECTS:
        given = names[0] if names else "nothing"
        raise Refused(f"bench {given}: name one of {', '.join(SUBJECTS)}{nearest(given, SUBJECTS)}")
    subject = importlib.import_module(f"attnlab.cli.bench.subjects.{names[0]}")
    prepared = subject.prepare(overrides, options.given.get("threads"))
    bench = subject.measure(prepared, _say, options.given.get("rounds") or subject.ROUNDS)
    print(json.dumps(asdict(bench)) if options.json else table(bench))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
