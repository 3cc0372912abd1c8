"""Declarations of each verb's flags for argparse."""

import argparse

from attnlab.cli.parser import VerbParser

SHELLS = ("bash", "zsh", "fish")
BUDGET_NAMES = ("tokens", "parameters", "flops", "cache")  # values of `judge --budget`
SCHEMA_NAMES = ("experiment", "spec", "run", "report")
TEMPLATE_KINDS = ("heads", "mask", "score", "mixer", "epilogue", "task", "experiment")  # kinds of `new`


def add_word_arguments(parser: VerbParser) -> None:
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def add_config_dir_flag(parser: VerbParser) -> None:
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with config groups of your own")


def add_list_flags(parser: VerbParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="a group, an experiment, or `experiments`")
    add_config_dir_flag(parser)
    _add_json_flag(parser)


def _add_json_flag(parser: VerbParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def add_hydra_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)
    parser.add_argument("-cp", "--config-path", metavar="DIR", help="a folder in the place of attnlab's own")
    parser.add_argument("-cn", "--config-name", metavar="NAME", help="a file in the place of config.yaml")


def add_plan_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    _add_json_flag(parser)


def add_status_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    _add_json_flag(parser)
    parser.add_argument("--watch", action="store_true", help="until all runs have ended")


def add_check_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)


def add_clean_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    parser.add_argument(
        "--forget", metavar="NAME", action="append", default=[],
        help="runs are no longer kept for this experiment alone; may be given more than once",
    )  # fmt: skip


def add_report_flags(parser: VerbParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="the folder of a report, or of many")
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="what two reports say differently")
    parser.add_argument(
        "--now", nargs="+", metavar="OVERRIDE", help="of a command's runs as they stand, while it trains"
    )
    _add_json_flag(parser)


def add_claims_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    parser.add_argument("--all", action="store_true", help="all that was decided, in hours")
    _add_json_flag(parser)


def add_bench_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the rows with their raw samples, as JSON")


def add_schema_flags(parser: VerbParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help=f"{', '.join(SCHEMA_NAMES)}; left out, these names"
    )


def add_new_flags(parser: VerbParser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(TEMPLATE_KINDS))
    parser.add_argument("name", metavar="NAME", help="a lower-case word that is no module's yet")
    parser.add_argument("--into", metavar="FOLDER", default=".", help="where; left out, the current folder")


def add_complete_flags(parser: VerbParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, default="bash", help="the shell (default bash)")
    parser.add_argument("--line", metavar="TEXT", help="the words that a line so far may go on with")


def add_judge_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    parser.add_argument("--metric", metavar="NAME", help="what decides (default val/loss)")
    parser.add_argument(
        "--margin",
        metavar="M",
        help="0.02, in the metric's unit, or 5%%: what 5 %% less training would cost (the default)",
    )
    parser.add_argument(
        "--budget", metavar="B", help=f"held equal beside the tokens: {', '.join(BUDGET_NAMES)}"
    )
