"""The flags of each verb, as argparse takes them."""

import argparse

from attnlab.cli.parser import Parser

SHELLS = ("bash", "zsh", "fish")
BUDGETS = ("tokens", "parameters", "flops", "cache")  # of `judge`
SCHEMAS = ("experiment", "spec", "run", "report")
KINDS = ("heads", "mask", "score", "mixer", "epilogue", "task", "experiment")  # of `new`


def words(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def config_dir(parser: Parser) -> None:
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with config groups of your own")


def list_(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="a group, an experiment, or `experiments`")
    config_dir(parser)
    _json(parser)


def _json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def for_hydra(parser: Parser) -> None:
    words(parser)
    config_dir(parser)
    parser.add_argument("-cp", "--config-path", metavar="DIR", help="a folder in the place of attnlab's own")
    parser.add_argument("-cn", "--config-name", metavar="NAME", help="a file in the place of config.yaml")


def plan(parser: Parser) -> None:
    for_hydra(parser)
    _json(parser)


def status(parser: Parser) -> None:
    for_hydra(parser)
    _json(parser)
    parser.add_argument("--watch", action="store_true", help="until all runs have ended")


def check(parser: Parser) -> None:
    words(parser)
    config_dir(parser)


def clean(parser: Parser) -> None:
    words(parser)
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    parser.add_argument(
        "--forget", metavar="NAME", action="append", default=[],
        help="runs are no longer kept for this experiment alone; may be given more than once",
    )  # fmt: skip


def report(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="the folder of a report, or of many")
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="what two reports say differently")
    parser.add_argument(
        "--now", nargs="+", metavar="OVERRIDE", help="of a command's runs as they stand, while it trains"
    )
    _json(parser)


def claims(parser: Parser) -> None:
    words(parser)
    parser.add_argument("--all", action="store_true", help="all that was decided, in hours")
    _json(parser)


def bench(parser: Parser) -> None:
    words(parser)
    parser.add_argument("--json", action="store_true", help="the rows with their raw samples, as JSON")


def schema(parser: Parser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help=f"{', '.join(SCHEMAS)}; left out, these names"
    )


def new(parser: Parser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="a lower-case word that is no module's yet")
    parser.add_argument("--into", metavar="FOLDER", default=".", help="where; left out, the current folder")


def complete(parser: Parser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, default="bash", help="the shell (default bash)")
    parser.add_argument("--line", metavar="TEXT", help="the words that a line so far may go on with")


def judge(parser: Parser) -> None:
    for_hydra(parser)
    parser.add_argument("--metric", metavar="NAME", help="what decides (default val/loss)")
    parser.add_argument(
        "--margin",
        metavar="M",
        help="0.02, in the metric's unit, or 5%%: what 5 %% less training would cost (the default)",
    )
    parser.add_argument("--budget", metavar="B", help=f"held equal beside the tokens: {', '.join(BUDGETS)}")
