"""The verbs with their arguments and flags, and the help text. Imports nothing heavy.

A verb's module is imported after its arguments are parsed, so help texts and typing errors stay cheap.
"""

import argparse
from collections.abc import Sequence

from attnlab.cli import flags
from attnlab.cli.kv_args import (
    KeyArgument,
    format_key_table,
    limit_parser,
    parse_boolean,
    parse_integer,
    parse_known_keys,
    parse_natural,
    parse_number,
    parse_only_keys,
    parse_positive,
    parse_text,
    parse_unicode,
)
from attnlab.cli.parser import PROGRAM, Verb, VerbParser
from attnlab.errors import InvalidConfig

BENCH_SUBJECTS = ("decode", "contexts", "train", "attention", "memory", "start", "data", "sharing")
MAX_NEW_TOKENS = 100_000
MAX_THREADS = 1024  # of generate and bench
DESCRIPTION = """\
attnlab: experiments on attention. One command trains all arms over all seeds and writes a report.

  python -m attnlab +experiment=NAME                   run an experiment; repeat the command to resume it
  python -m attnlab +experiment=NAME size=S seed=0,1   at another size, with other seeds
  python -m attnlab +experiment=NAME 'arms=[mha,gqa]'  some of its arms
  python -m attnlab heads=gqa position=rope            one run, cached like the others
  python -m attnlab --cfg job +experiment=NAME         print the composed config
  python -m attnlab --config-dir DIR heads=mine        with your own config groups
  python -m attnlab VERB --help                        arguments and examples of a verb
  python -m attnlab --trust mine                       trust the module mine in stored run configs"""


def parse_verb_line(verb_name: str, line: Sequence[str]) -> argparse.Namespace:
    """Parse a verb's options; the values of its keys are in `key_values`."""
    verb = VERBS[verb_name]
    options = build_parsers()[1][verb_name].parse_line(line)
    if verb.accepts_overrides:
        options.key_values, options.words = parse_known_keys(options.words, verb.keys)
        if verb.input_key and "experiment" not in options.key_values:
            parse_only_keys(verb_name, options.words, verb.keys)  # without experiment= no overrides
    elif verb.keys:
        options.key_values = parse_only_keys(verb_name, options.words, verb.keys)
    names = [key.name for key in verb.keys]
    if "arm" in names and "experiment" not in options.key_values and {"arm", "seed"} & {*options.key_values}:
        raise InvalidConfig(
            "arm= and seed= select a run of an experiment: add experiment=NAME, or remove them"
        )
    model_keys = [name for name in names if name in ("run", "checkpoint", "experiment")]
    if verb.input_key and (
        verb.input_key not in options.key_values or len({*model_keys} & {*options.key_values}) != 1
    ):
        raise InvalidConfig(
            f"{verb_name} needs {verb.input_key}=, "
            f"and one of {'=, '.join(model_keys[:-1])}= and {model_keys[-1]}=, "
            f"as in {PROGRAM} {verb_name} {verb.examples[0]}"
        )
    return options


def build_parsers(epilog: str = "") -> tuple[VerbParser, dict[str, VerbParser]]:
    """Build the main parser, and the subparsers by verb."""
    parser = VerbParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OVERRIDE ...]\n       {PROGRAM} VERB [-h] ...",
        description=DESCRIPTION,
        epilog=epilog,
    )
    subcommands = parser.add_subparsers(title="verbs", metavar="VERB", prog=PROGRAM)
    verbs: dict[str, VerbParser] = {}
    for name, verb in VERBS.items():
        sentence = verb.summary[0].upper() + verb.summary[1:] + "."
        examples = "\n".join(f"  {PROGRAM} {name} {example}".rstrip() for example in verb.examples)
        verbs[name] = subcommands.add_parser(
            name,
            usage=f"{PROGRAM} {name} {verb.usage}",
            help=verb.summary,
            description=f"{sentence}\n{verb.details}\n\nexamples:\n{examples}".replace("\n\n\n", "\n\n"),
        )
        verb.add_arguments(verbs[name])
        if verb.keys:
            verbs[name].add_argument_group("keys", format_key_table(verb.keys))
    return parser, verbs


_RUN_KEYS = (
    KeyArgument("run", "id of a run, or a unique prefix of it"),
    KeyArgument("runs", "folder of the run directories, for run=", parse_text, "runs"),
)
_MODEL_KEYS = (
    *_RUN_KEYS,
    KeyArgument(
        "checkpoint", "run directory, its model.safetensors, or Hugging Face folder with its tokenizer"
    ),
)
_EXPERIMENT_KEYS = (
    KeyArgument("experiment", "experiment of the run; add arm=, seed=, and if needed size= or data="),
    KeyArgument("arm", "arm of the run"),
    KeyArgument("seed", "seed of the run (default: lowest finished seed)", parse_integer),
)
_TRUST_NOTE = (
    "A run config may instantiate classes of attnlab and of the modules that you trust: --trust MODULE."
)

# Verbs in the order of the help text.
VERBS = {
    "list": Verb(
        "attnlab.cli.verbs.list:main",
        "list experiments and the options of every axis; with names, describe them",
        "[NAME ...] [--config-dir DIR] [--json]",
        ("", "heads gqa_vs_mha"),
        flags.add_list_flags,
    ),
    "plan": Verb(
        "attnlab.cli.verbs.plan:print_plan",
        "show the runs of a command: finished, still to train, estimated time and memory",
        "[NAME] [OVERRIDE ...] [--json]",
        ("gqa_vs_mha", "+experiment=gqa_vs_mha size=M seed=0,1"),
        flags.add_plan_flags,
    ),
    "status": Verb(
        "attnlab.cli.verbs.plan:print_status",
        "show the state of a command's runs; --watch refreshes until they end",
        "[NAME] [OVERRIDE ...] [--watch] [--json]",
        ("gqa_vs_mha", "+experiment=gqa_vs_mha seed=0,1 --watch"),
        flags.add_status_flags,
    ),
    "ladder": Verb(
        "attnlab.cli.verbs.plan:run_ladder",
        "run an experiment at every size or budget of a ladder, to test whether its result changes with it",
        "+experiment=NAME [ladder=NAME] [OVERRIDE ...]",
        ("+experiment=gqa_vs_mha", "+experiment=recall_state ladder=tokens"),
        flags.add_hydra_flags,
        details="Equivalent to +experiment=NAME ladder=two_cores, which `plan` and `status` accept too. Each "
        "ladder size is\na comparison with its own report; NAME@two_cores combines their results. "
        "ladder=tokens has training\nbudgets in place of sizes.",
    ),
    "work": Verb(
        "attnlab.cli.verbs.work:main",
        "be one of several workers that share a sweep: train the next free run, and repeat",
        "NAME [OVERRIDE ...] [--for TIME] [--max-runs N] [--idle TIME]",
        ("+experiment=gqa_vs_mha", "+experiment=gqa_vs_mha --for 2h --idle 10m"),
        flags.add_work_flags,
        details="Start and stop any number of them at any time, on any host that sees paths.runs, with the "
        "same overrides.\nA worker exits when the interim analyses decide. One of them writes the report.",
    ),
    "compare": Verb(
        "attnlab.cli.verbs.compare:main",
        "compare arms given on the command line, as in compare heads=mha heads=gqa",
        "ARM ARM [ARM or OVERRIDE ...]",
        ('"heads=mha" "heads=gqa position=rope"', "heads=mha heads=gqa heads=mqa seed=0,1,2,3 margin=0.05"),
        flags.add_compare_flags,
        details="The first arm is the baseline. A later word that sets a key of another arm is an arm too; "
        "any other word\napplies to all arms. The default margin is the loss equivalent to 5% less training "
        "compute, which needs\nsix calibration runs of the baseline; margin=0.05 is in nats and needs none.",
    ),
    "judge": Verb(
        "attnlab.cli.verbs.judge:main",
        "test whether B is better than A; verdict in the last line and as exit status",
        "A B [--metric NAME] [--margin M] [--budget B] [OVERRIDE ...] | FILE FILE ... | --noise FILE ... | "
        "--champion FILE --log LOG FILE ...",
        (
            '"heads=mha" "heads=gqa position=rope"',
            "a.csv b.csv --metric val_loss --lower-is-better --margin 0.01",
        ),
        flags.add_judge_flags,
        details="A and B are overrides, or yaml files of overrides, as in `heads: gqa`. Better means better "
        "by more than the\nmargin. More seeds are trained while the claim is inconclusive. Two existing "
        "files or folders are runs that\nwere trained elsewhere: CSV, TSV, JSONL, Parquet, a TensorBoard "
        "folder, a CSV that W&B exported, or run\ndirectories. Exit status: 0 better, 3 not better, 4 "
        "inconclusive, 5 not comparable, 2 invalid input, 1 a run\nfailed and no decision.",
    ),
    "cost": Verb(
        "attnlab.cli.verbs.cost:main",
        "count the memory, FLOPs and shortest time of serving a model, from its config",
        "CONFIG [--vs ALTERNATIVE] [--length N] [--batch B] [--dtype D] [--kv-dtype D] [--device D] "
        "[--config-dir DIR] [--page FILE] [--json]",
        (
            "config.json --length 65536 --batch 8 --kv-dtype int8 --device h100",
            'heads=mha --vs "heads=gqa" --vs "layers=local_global" --page cost.html',
        ),
        flags.add_cost_flags,
        details="CONFIG is a Hugging Face config.json or its folder, a run directory, or overrides. No "
        "weights are loaded.\nA config that cannot be read exactly is an error that names its key.",
    ),
    "clean": Verb(
        "attnlab.cli.verbs.clean:main",
        "show disk use; remove old unreferenced runs after confirmation",
        "[KEY=VALUE ...] [--forget NAME] [--yes]",
        ("--yes --forget mha_vs_gqa", "paths.runs=/data/runs paths.reports=reports paths.reports=old days=7"),
        flags.add_clean_flags,
        (
            KeyArgument("paths.runs", "folder of the run directories", parse_text, "runs"),
            KeyArgument(
                "paths.reports", "report folder whose runs are kept; repeatable", parse_text, ["reports"],
                True,
            ),
            KeyArgument("days", "keep runs that are newer", parse_natural, 30),
        ),
        details="A run is kept if a report lists it, a process trains it, or it is newer than `days`. "
        "Reports are searched\nin paths.reports and in the report folders of earlier commands. If a command "
        "was killed or its report was\nnot found, its runs are kept until --forget NAME releases them.",
    ),
    "report": Verb(
        "attnlab.cli.verbs.report:main",
        "render a report, or a folder of reports with an index of claims; --diff A B compares two",
        "FOLDER | --diff A B | --now OVERRIDE ... [--config-dir DIR] [--json]",
        ("reports/gqa_vs_mha", "--diff reports/A reports/B"),
        flags.add_report_flags,
    ),
    "claims": Verb(
        "attnlab.cli.verbs.claims:main",
        "re-run reference experiments, and fail if a verdict changes",
        "[FOLDER] [OVERRIDE ...] [--all] [--json]",
        ("reports/reference", "reports/reference --all logger=none"),
        flags.add_claims_flags,
    ),
    "inspect": Verb(
        "attnlab.cli.verbs.inspect:main",
        "show the attention maps of a trained model on a given text",
        "KEY=VALUE ...",
        (
            'experiment=gqa_vs_mha arm=gqa seed=400 text="the cat sat on the mat" layer=1 head=0',
            'checkpoint=FOLDER text="..." layer=1 head=0 to=FOLDER',
        ),
        flags.add_word_arguments,
        (
            *_MODEL_KEYS,
            *_EXPERIMENT_KEYS,
            KeyArgument("text", "input text", parse_unicode),
            KeyArgument("layer", "show only this layer", parse_integer),
            KeyArgument("head", "show only this head", parse_integer),
            KeyArgument("top", "strongest links shown per token", parse_positive, 3),
            KeyArgument("to", "output folder (default reports/inspect/NAME)", parse_text),
        ),
        details=f"The page opens at the given layer and head.\n{_TRUST_NOTE}",
        input_key="text",
        accepts_overrides=True,
    ),
    "check": Verb(
        "attnlab.cli.verbs.check:main",
        "run the conformance tests on the shipped variants, on your own, or on any attention module",
        "[OVERRIDE ...] [--config-dir DIR] [-v] | --module MODULE:FACTORY [--adapter NAME] [--bidirectional] "
        "[--json]",
        ("-v --config-dir myconf mask=banded", "--module my_attention:MyAttention"),
        flags.add_check_flags,
        details="Exit status 1 if a variant breaks an invariant, a module fails a check, or nothing could be "
        "checked.",
    ),
    "new": Verb(
        "attnlab.cli.new.new_command:main",
        "create your own mask, heads, task, ...: a working module, yaml and test to edit",
        "KIND NAME [--into FOLDER]",
        ("mask banded", "experiment sooner --into mine"),
        flags.add_new_flags,
        details="Existing files are never overwritten. The command prints the next steps.",
    ),
    "generate": Verb(
        "attnlab.cli.verbs.generate:main",
        "stream text that a trained model generates after a prompt",
        "KEY=VALUE ...",
        (
            'run=ID prompt="the " new_tokens=200 temperature=0.8 top_p=0.95 seed=1',
            'checkpoint=FOLDER prompt="..." decode=static compile=true',
        ),
        flags.add_word_arguments,
        (
            *_MODEL_KEYS,
            KeyArgument("prompt", "text to continue", parse_unicode),
            KeyArgument(
                "new_tokens", "maximum number of generated tokens",
                limit_parser(MAX_NEW_TOKENS, parse_integer), 200,
            ),
            KeyArgument(
                "stop",
                "text whose last token also ends the generation; none: generate past the end token too",
                parse_unicode,
            ),
            KeyArgument("temperature", "sampling temperature; 0 takes the most likely token", parse_number),
            KeyArgument("top_k", "sample from this many most likely tokens", parse_integer),
            KeyArgument("top_p", "sample from the most likely tokens with this probability", parse_number),
            KeyArgument("seed", "seed of the sampling", parse_integer),
            KeyArgument("decode", "cache, an option of the group decode"),
            KeyArgument("compile", "compile the decoding step; needs decode=static", parse_boolean),
            KeyArgument("threads", "CPU threads", limit_parser(MAX_THREADS), 1),
        ),
        details=_TRUST_NOTE,
        input_key="prompt",
    ),
    "export": Verb(
        "attnlab.cli.verbs.export:main",
        "write the trained model of a run as a Hugging Face folder",
        "KEY=VALUE ...",
        ("run=ID to=exported", "run=ID runs=/data/runs to=copy"),
        flags.add_word_arguments,
        (
            *_RUN_KEYS,
            *_EXPERIMENT_KEYS,
            KeyArgument("to", "output folder, new or empty", parse_text),
        ),
        details="The folder has config.json, safetensors and the tokenizer. Exit status 2 if the model has a "
        f"part that no\nfamily of checkpoints has, with the part.\n{_TRUST_NOTE}",
        input_key="to",
        accepts_overrides=True,
    ),
    "bench": Verb(
        "attnlab.cli.verbs.bench:main",
        f"benchmark {', '.join(BENCH_SUBJECTS[:-1])} or {BENCH_SUBJECTS[-1]}",
        "NAME [KEY=VALUE ...] [--config-dir DIR] [--json]",
        ("decode", "start experiment=gqa_vs_mha rounds=5 --json"),
        flags.add_bench_flags,
        (
            KeyArgument(
                "threads", "CPU threads (default 1 if measured in this process)", limit_parser(MAX_THREADS)
            ),
            KeyArgument(
                "rounds", "measurements of each row (default depends on NAME)", parse_positive
            ),
        ),
        details="Only in a clone. Other words are overrides of the measured config; `bench start` takes "
        "experiment=NAME and\noverrides of its command. size=debug selects the smallest setting of every "
        "NAME: a tiny model, few lengths\nand steps. If a measurement fails (exit status 1), on SIGTERM "
        "(143) and on Ctrl-C (130), the command\nprints the rows measured before.",
        accepts_overrides=True,
    ),
    "corpus": Verb(
        "attnlab.cli.verbs.corpus:main",
        "describe the sources of a corpus (show), or write it to one portable file (export)",
        "show|export OVERRIDE ... [to=FILE] [--config-dir DIR]",
        ("show data=code", "export data=code to=code.gz"),
        flags.add_corpus_flags,
        (
            KeyArgument(
                "to", "output file of export; a file with other content is never overwritten", parse_text
            ),
        ),
        details="The words are overrides of a run config; only data= and its keys have an effect.",
        accepts_overrides=True,
    ),
    "complete": Verb(
        "attnlab.cli.shell_completion:main",
        "print a shell script that completes attnlab commands",
        "bash|zsh|fish",
        ("bash > ~/.attnlab.bash", "fish > ~/.config/fish/completions/attnlab.fish"),
        flags.add_complete_flags,
        details="It completes the command `attnlab`. bash: `source` the file in ~/.bashrc; zsh: _attnlab in "
        "a\nfolder of $fpath.",
    ),
    "schema": Verb(
        "attnlab.cli.verbs.schema:main",
        "print the JSON schema of an experiment file, run config, run result or report",
        "[NAME]",
        ("", "experiment > experiment.json"),
        flags.add_schema_flags,
    ),
}  # fmt: skip
