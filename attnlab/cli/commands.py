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
)
from attnlab.cli.parser import PROGRAM, Verb, VerbParser
from attnlab.errors import InvalidConfig

BENCH_SUBJECTS = ("decode", "contexts", "train", "attention", "memory", "start", "data", "sharing")
MAX_NEW_TOKENS = 100_000
MAX_THREADS = 1024  # of generate and bench
DESCRIPTION = """\
attnlab: experiments on attention. One command trains all arms over all seeds and writes a report.

  python -m attnlab +experiment=NAME                   run an experiment; the same command again carries on
  python -m attnlab +experiment=NAME size=S seed=0,1   at another size, with other seeds
  python -m attnlab +experiment=NAME 'arms=[mha,gqa]'  some of its arms
  python -m attnlab heads=gqa position=rope            one run, stored like any other
  python -m attnlab --cfg job +experiment=NAME         print the composed config
  python -m attnlab --config-dir DIR heads=mine        with config groups of your own
  python -m attnlab VERB --help                        what a verb takes, with examples
  python -m attnlab --trust mine                       let stored runs name the module mine from now on"""


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
    model_keys = [key.name for key in verb.keys if key.name in ("run", "checkpoint", "experiment")]
    if verb.input_key and (
        verb.input_key not in options.key_values or len({*model_keys} & {*options.key_values}) != 1
    ):
        raise InvalidConfig(
            f"{verb_name} needs {verb.input_key}=, "
            f"and one of {'=, '.join(model_keys[:-1])}= and {model_keys[-1]}=. "
            f"As in: {PROGRAM} {verb_name} {verb.examples[0]}"
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


_MODEL_KEYS = (
    KeyArgument("run", "a run's id, or as much of it as no other run's begins with"),
    KeyArgument(
        "checkpoint", "a run's folder, its model.safetensors, or a Hugging Face folder with its tokenizer"
    ),
    KeyArgument("runs", "the store that run= is looked up in", parse_text, "runs"),
)
_TRUST_NOTE = (
    "Of what a run's config names, parts of attnlab are built, and modules that you let in: --trust MODULE."
)

# Verbs in the order of the help text.
VERBS = {
    "list": Verb(
        "attnlab.cli.verbs.list:main",
        "the experiments and the options of every axis; with names, what each of them is",
        "[NAME ...] [--config-dir DIR] [--json]",
        ("", "heads gqa_vs_mha"),
        flags.add_list_flags,
    ),
    "plan": Verb(
        "attnlab.cli.verbs.plan:print_plan",
        "what a command would train, with figures, and what is done already",
        "[NAME] [OVERRIDE ...] [--json]",
        ("gqa_vs_mha", "+experiment=gqa_vs_mha size=M seed=0,1"),
        flags.add_plan_flags,
    ),
    "status": Verb(
        "attnlab.cli.verbs.plan:print_status",
        "where the runs of a command stand now; --watch until they end",
        "[NAME] [OVERRIDE ...] [--watch] [--json]",
        ("gqa_vs_mha", "+experiment=gqa_vs_mha seed=0,1 --watch"),
        flags.add_status_flags,
    ),
    "ladder": Verb(
        "attnlab.cli.verbs.plan:run_ladder",
        "an experiment at every size of a ladder: does its answer hold with size?",
        "+experiment=NAME [ladder=NAME] [OVERRIDE ...]",
        ("+experiment=gqa_vs_mha", "+experiment=gqa_vs_mha ladder=two_cores 'arms=[mha,gqa]'"),
        flags.add_hydra_flags,
        details="The same as +experiment=NAME ladder=two_cores, and `plan` and `status` take that. Each rung "
        "is a comparison\nwith a report of its own; NAME@two_cores has what they say together.",
    ),
    "compare": Verb(
        "attnlab.cli.verbs.compare:main",
        "arms from the command line, as in compare heads=mha heads=gqa",
        "ARM ARM [ARM or OVERRIDE ...]",
        ('"heads=mha" "heads=gqa position=rope"', "heads=mha heads=gqa heads=mqa seed=0,1 margin=0.05"),
        flags.add_hydra_flags,
        details="The first arm is the baseline. A later word that sets what an arm sets is "
        "an arm too; any\nother is for all arms. The margin is what 5 % less training would cost, "
        "which takes six runs of the\nbaseline to tell; margin=0.05 is in nats and takes none.",
    ),
    "judge": Verb(
        "attnlab.cli.verbs.judge:main",
        "is B better than A? A verdict as JSON, and an exit status, for programs that propose changes",
        "A B [--metric NAME] [--margin M] [--budget B] [OVERRIDE ...]",
        ('"heads=mha" "heads=gqa position=rope"', "heads=mha mine.yaml --margin 0.02 --budget parameters"),
        flags.add_judge_flags,
        details="A and B are overrides, or yaml files of a run's config. Better: by more than the margin. "
        "More\nseeds are trained while that is open. Ends with 0 better, 3 not better, 4 undecided, 5 not\n"
        "comparable, 2 bad input, 1 where a run failed and nothing was decided.",
    ),
    "clean": Verb(
        "attnlab.cli.verbs.clean:main",
        "the store's size; removes old runs that nothing refers to, after asking",
        "[KEY=VALUE ...] [--forget NAME] [--yes]",
        ("--yes --forget mha_vs_gqa", "paths.runs=/data/runs paths.reports=reports paths.reports=old days=7"),
        flags.add_clean_flags,
        (
            KeyArgument("paths.runs", "the store", parse_text, "runs"),
            KeyArgument(
                "paths.reports", "reports, whose runs stay; as often as needed", parse_text, ["reports"], True
            ),
            KeyArgument("days", "newer runs stay", parse_natural, 30),
        ),
        details="A run stays while a report lists it, a process trains it, or it is new. Reports are "
        "searched\nin paths.reports and where the commands of this store wrote theirs. The runs of a "
        "command that\nwas killed, or whose report is not known here, stay until it is forgotten by name.",
    ),
    "report": Verb(
        "attnlab.cli.verbs.report:main",
        "render a report, or a folder of them with index and ledger, from its data; --diff A B compares two",
        "FOLDER | --diff A B | --now OVERRIDE ... [--json]",
        ("reports/gqa_vs_mha", "--diff reports/A reports/B"),
        flags.add_report_flags,
    ),
    "claims": Verb(
        "attnlab.cli.verbs.claims:main",
        "run again what reference reports found, and fail where it is not so",
        "[FOLDER] [OVERRIDE ...] [--all] [--json]",
        ("reports/reference", "reports/reference --all logger=none"),
        flags.add_claims_flags,
    ),
    "inspect": Verb(
        "attnlab.cli.verbs.inspect:main",
        "where a trained model looks in a text of yours",
        "KEY=VALUE ...",
        (
            'experiment=gqa_vs_mha arm=gqa seed=400 text="the cat sat on the mat" layer=1 head=0',
            'checkpoint=FOLDER text="..." layer=2 head=0 to=FOLDER',
        ),
        flags.add_word_arguments,
        (
            *_MODEL_KEYS,
            KeyArgument("experiment", "what trained it, with arm=, seed= and where need be size= or data="),
            KeyArgument("arm", "its arm"),
            KeyArgument("seed", "its seed (left out, the lowest that is finished)", parse_integer),
            KeyArgument("text", "what it reads"),
            KeyArgument("layer", "this layer alone", parse_integer),
            KeyArgument("head", "this head alone", parse_integer),
            KeyArgument("top", "links shown of every token", parse_positive, 3),
            KeyArgument("to", "the page's folder (default reports/inspect/NAME)", parse_text),
        ),
        details=f"The page opens at the layer and head that are named.\n{_TRUST_NOTE}",
        input_key="text",
        accepts_overrides=True,
    ),
    "check": Verb(
        "attnlab.cli.verbs.check:main",
        "run the conformance laws over the shipped variants, or over your own",
        "[OVERRIDE ...] [--config-dir DIR]",
        ("heads=gqa", "--config-dir myconf mask=banded"),
        flags.add_check_flags,
        details="Ends with 1 where a law failed.",
    ),
    "new": Verb(
        "attnlab.cli.new.new_command:main",
        "a mask, heads, a task, ... of your own: a module, a yaml and a test that work, to be changed",
        "KIND NAME [--into FOLDER]",
        ("mask banded", "experiment sooner --into mine"),
        flags.add_new_flags,
        details="Nothing is overwritten. What to run next is printed.",
    ),
    "generate": Verb(
        "attnlab.cli.verbs.generate:main",
        "what a trained model writes after a prompt, as it writes it",
        "KEY=VALUE ...",
        (
            'run=ID prompt="the " new_tokens=200 temperature=0.8 top_p=0.95 seed=1',
            'checkpoint=FOLDER prompt="..." decode=static compile=true',
        ),
        flags.add_word_arguments,
        (
            *_MODEL_KEYS,
            KeyArgument("prompt", "what it goes on from"),
            KeyArgument(
                "new_tokens", "how many tokens it writes at most",
                limit_parser(MAX_NEW_TOKENS, parse_integer), 200,
            ),
            KeyArgument("stop", "text whose last token ends it"),
            KeyArgument("temperature", "0 takes the likeliest token", parse_number),
            KeyArgument("top_k", "draw among so many of the likeliest tokens", parse_integer),
            KeyArgument("top_p", "draw among the likeliest tokens that share this probability", parse_number),
            KeyArgument("seed", "decides what is drawn", parse_integer),
            KeyArgument("decode", "another cache, a value of the axis decode"),
            KeyArgument("compile", "compile the step of one token; needs decode=static", parse_boolean),
            KeyArgument("threads", "of the CPU", limit_parser(MAX_THREADS), 1),
        ),
        details=_TRUST_NOTE,
        input_key="prompt",
    ),
    "bench": Verb(
        "attnlab.cli.bench.bench_command:main",
        f"{', '.join(BENCH_SUBJECTS[:-1])} or {BENCH_SUBJECTS[-1]}, side by side; --json",
        "NAME [KEY=VALUE ...] [--json]",
        ("decode", "start experiment=gqa_vs_mha rounds=5 --json"),
        flags.add_bench_flags,
        (
            KeyArgument(
                "threads", "of the CPU; left out, one where this process measures", limit_parser(MAX_THREADS)
            ),
            KeyArgument(
                "rounds", "how often each thing is measured; left out, the subject's own", parse_positive
            ),
        ),
        details="Other words are overrides of the config that is measured; for start, experiment=NAME and "
        "overrides of its\ncommand. size=debug is the smallest setting of every NAME: a tiny model, few "
        "lengths and steps. Where a\npart fails (exit status 1), on SIGTERM (143) and on Ctrl-C (130), the "
        "rows measured before are\nprinted.",
        accepts_overrides=True,
    ),
    "corpus": Verb(
        "attnlab.cli.verbs.corpus:main",
        "what a text is made of (show), or all of it in one file that travels (export)",
        "show|export OVERRIDE ... [to=FILE]",
        ("show data=code", "export data=code to=code.gz"),
        flags.add_word_arguments,
        (
            KeyArgument(
                "to", "the file that export writes; one with other content is left as it is", parse_text
            ),
        ),
        details="The words are overrides of a run's config, of which data= and what is below it count.",
        accepts_overrides=True,
    ),
    "complete": Verb(
        "attnlab.cli.shell_completion:main",
        "what a shell loads to complete attnlab's words",
        "bash|zsh|fish",
        ("bash > ~/.attnlab.bash", "fish > ~/.config/fish/completions/attnlab.fish"),
        flags.add_complete_flags,
        details="It completes the command `attnlab`. bash: `source` the file in ~/.bashrc; zsh: _attnlab in "
        "a\nfolder of $fpath.",
    ),
    "schema": Verb(
        "attnlab.cli.verbs.schema:main",
        "the JSON schema of an experiment file, or of a run's spec, record or report",
        "[NAME]",
        ("", "experiment > experiment.json"),
        flags.add_schema_flags,
    ),
}  # fmt: skip
