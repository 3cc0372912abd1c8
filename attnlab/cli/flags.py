"""Declarations of each verb's flags for argparse."""

import argparse

from attnlab.cli.new import TEMPLATE_KINDS
from attnlab.cli.parser import VerbParser

SHELLS = ("bash", "zsh", "fish")
BUDGET_NAMES = ("tokens", "parameters", "flops", "cache")  # values of `judge --budget`
SCHEMA_NAMES = ("experiment", "spec", "run", "report")


def add_word_arguments(parser: VerbParser) -> None:
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def add_config_dir_flag(parser: VerbParser) -> None:
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="folder with your own config groups")


def add_list_flags(parser: VerbParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="group, experiment, or `experiments`")
    add_config_dir_flag(parser)
    _add_json_flag(parser)


def _add_json_flag(parser: VerbParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the output as JSON")


def add_hydra_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)
    parser.add_argument("-cp", "--config-path", metavar="DIR", help="config folder that replaces attnlab's")
    parser.add_argument("-cn", "--config-name", metavar="NAME", help="config file that replaces config.yaml")


def add_plan_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    _add_json_flag(parser)


def add_work_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        help="stop after this time, as in 90s, 10m or 2h: runs are interrupted with a checkpoint",
    )
    parser.add_argument("--max-runs", metavar="N", help="take at most N runs")
    parser.add_argument("--idle", metavar="TIME", help="stop after this time without a free run")


def add_status_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    _add_json_flag(parser)
    parser.add_argument("--watch", action="store_true", help="refresh until all runs have ended")


def add_check_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the outcome of every test")
    parser.add_argument(
        "--module",
        metavar="MODULE:FACTORY",
        help="check the torch module that a class or function returns, as in my_attention:MyAttention",
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME",
        help="with --module, how it is called: multihead, transformers, fla, qkv or plain (default: chosen "
        "from its class or signature)",
    )
    parser.add_argument(
        "--bidirectional",
        action="store_true",
        help="with --module: outputs may depend on later tokens",
    )
    parser.add_argument("--json", action="store_true", help="with --module: print the results as JSON")


def add_clean_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="remove without confirmation")
    parser.add_argument(
        "--forget", metavar="NAME", action="append", default=[],
        help="release the runs that only this experiment references; repeatable",
    )  # fmt: skip


def add_report_flags(parser: VerbParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="folder of a report, or of several reports"
    )
    parser.add_argument(
        "--diff", nargs=2, metavar=("A", "B"), help="show the differences between two reports"
    )
    parser.add_argument(
        "--now",
        nargs="+",
        metavar="OVERRIDE",
        help="report on the finished runs of a command that is still training",
    )
    add_config_dir_flag(parser)
    _add_json_flag(parser)


def add_claims_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    parser.add_argument("--all", action="store_true", help="re-test all decided claims, which takes hours")
    _add_json_flag(parser)


def add_bench_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the rows with their raw samples as JSON")


def add_schema_flags(parser: VerbParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help=f"{', '.join(SCHEMA_NAMES)} (default: list these names)"
    )


def add_new_flags(parser: VerbParser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(TEMPLATE_KINDS))
    parser.add_argument("name", metavar="NAME", help="lower-case word that is not yet the name of a module")
    parser.add_argument(
        "--into", metavar="FOLDER", default=".", help="target folder (default: current folder)"
    )


def add_complete_flags(parser: VerbParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, default="bash", help="the shell (default bash)")
    parser.add_argument("--line", metavar="TEXT", help="print the completions of a partial command line")


def add_corpus_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)


def add_cost_flags(parser: VerbParser) -> None:
    add_word_arguments(parser)
    add_config_dir_flag(parser)
    parser.add_argument(
        "--vs", metavar="ALTERNATIVE", action="append", default=[],
        help="another model beside CONFIG: a path, or the words that change; repeatable",
    )  # fmt: skip
    parser.add_argument("--length", metavar="N", help="cached tokens of a sequence (default 8192)")
    parser.add_argument("--batch", metavar="B", default="1", help="sequences (default 1)")
    parser.add_argument(
        "--dtype", metavar="D", default="bf16", help="of the weights: bf16 (default), fp16 or fp32"
    )
    parser.add_argument(
        "--kv-dtype", metavar="D", help="of the cache: fp32, bf16, fp16, fp8, int8 or int4 (default: --dtype)"
    )
    parser.add_argument(
        "--device", metavar="D", help="such as h100, for the shortest time and the largest batch"
    )
    parser.add_argument("--page", metavar="FILE", help="write an HTML page with bytes and time by length")
    _add_json_flag(parser)


def add_compare_flags(parser: VerbParser) -> None:
    add_hydra_flags(parser)
    _add_json_flag(parser)


def add_judge_flags(parser: VerbParser) -> None:
    add_compare_flags(parser)
    parser.add_argument("--metric", metavar="NAME", help="metric to compare (default val/loss)")
    parser.add_argument(
        "--margin",
        metavar="M",
        help=(
            "0.02, in the metric's unit, or 5%%: the loss equivalent to 5%% less training compute (the "
            "default)"
        ),
    )
    parser.add_argument(
        "--budget", metavar="B", help=f"resource to match in addition to tokens: {', '.join(BUDGET_NAMES)}"
    )
    parser.add_argument(
        "--noise",
        metavar="FILE",
        help=(
            "in place of A and B: a file with runs of one configuration; prints the smallest difference that "
            "numbers of runs can show"
        ),
    )
    parser.add_argument(
        "--reduce",
        metavar="HOW",
        help="with files, one number per run: last (default), mean:k (of the last k values) or best",
    )
    parser.add_argument(
        "--arm-column", metavar="NAME", help="column of one file that holds both arms, A first"
    )
    parser.add_argument(
        "--looks",
        metavar="N,N",
        help=(
            "with files: the numbers of runs per side at which to judge, set before the first run; once for "
            "any one such number; anytime (default) if runs may be added at will"
        ),
    )
    parser.add_argument(
        "--declare",
        metavar="FILE",
        help="with files that do not exist yet: record the question; with their runs: judge as declared",
    )
    parser.add_argument(
        "--champion", metavar="FILE", help="runs that each of the other files is tested against, with --log"
    )
    parser.add_argument(
        "--log", metavar="FILE", help="append-only log that counts candidates and bounds false discoveries"
    )
    parser.add_argument(
        "--fdr", metavar="Q", help="of a new log: largest expected share of false discoveries (default 0.05)"
    )
    parser.add_argument(
        "--batch", action="store_true", help="of a new log: it takes the candidates of one command alone"
    )
    parser.add_argument(
        "--confirm", metavar="CANDIDATE", help="judge a winner of the log by two files of fresh runs"
    )
    parser.add_argument("--page", action="store_true", help="with files: render the page of the report too")
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument("--lower-is-better", action="store_true", help="with files, as for a loss")
    direction.add_argument("--higher-is-better", action="store_true", help="with files, as for an accuracy")
    parser.add_argument(
        "--same-unit",
        action="store_true",
        help="with files: accept sides that differ by a factor between usual units",
    )
