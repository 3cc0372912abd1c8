"""What may be typed: the verbs with their words and flags, and the help of the whole. Imports nothing heavy.

A verb's module is imported once its words have been read: a help text and a typing error cost nothing.
"""

import argparse
from collections.abc import Sequence

from attnlab.cli import flags
from attnlab.cli.parser import PROGRAM, Parser, Verb
from attnlab.cli.words import Key, at_most, flag, known, natural, number, positive, read, table, text, whole
from attnlab.errors import Refused

SUBJECTS = ("decode", "contexts", "train", "attention", "memory", "start", "data", "sharing")  # of `bench`
NEW_TOKENS = 100_000
THREADS = 1024  # what generate and bench are asked for at most
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


def parse(name: str, line: Sequence[str]) -> argparse.Namespace:
    """The options of a verb; where it has keys, their values are `given`."""
    verb = VERBS[name]
    options = parsers()[1][name].read(line)
    if verb.overrides:
        options.given, options.words = known(options.words, verb.keys)
        if verb.reads and "experiment" not in options.given:
            read(name, options.words, verb.keys)  # which knows its keys alone
    elif verb.keys:
        options.given = read(name, options.words, verb.keys)
    ways = [key.name for key in verb.keys if key.name in ("run", "checkpoint", "experiment")]
    if verb.reads and (verb.reads not in options.given or len({*ways} & {*options.given}) != 1):
        raise Refused(
            f"{name} needs {verb.reads}=, and one of {'=, '.join(ways[:-1])}= and {ways[-1]}=. "
            f"As in: {PROGRAM} {name} {verb.examples[0]}"
        )
    return options


def parsers(epilog: str = "") -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole, and its subcommands."""
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OVERRIDE ...]\n       {PROGRAM} VERB [-h] ...",
        description=DESCRIPTION,
        epilog=epilog,
    )
    subcommands = parser.add_subparsers(title="verbs", metavar="VERB", prog=PROGRAM)
    verbs: dict[str, Parser] = {}
    for name, verb in VERBS.items():
        says = verb.says[0].upper() + verb.says[1:] + "."
        examples = "\n".join(f"  {PROGRAM} {name} {example}".rstrip() for example in verb.examples)
        verbs[name] = subcommands.add_parser(
            name,
            usage=f"{PROGRAM} {name} {verb.usage}",
            help=verb.says,
            description=f"{says}\n{verb.more}\n\nexamples:\n{examples}".replace("\n\n\n", "\n\n"),
        )
        verb.declare(verbs[name])
        if verb.keys:
            verbs[name].add_argument_group("keys", table(verb.keys))
    return parser, verbs


_TRAINED = (
    Key("run", "a run's id, or as much of it as no other run's begins with"),
    Key("checkpoint", "a run's folder, its model.safetensors, or a Hugging Face folder with its tokenizer"),
    Key("runs", "the store that run= is looked up in", text, "runs"),
)
_OWN = (
    "Of what a run's config names, parts of attnlab are built, and modules that you let in: --trust MODULE."
)

# What a verb has to say of itself, and where it lives.
VERBS = {
    "list": Verb(
        "attnlab.cli.verbs.list:main",
        "the experiments and the options of every axis; with names, what each of them is",
        "[NAME ...] [--config-dir DIR] [--json]",
        ("", "heads gqa_vs_mha"),
        flags.list_,
    ),
    "plan": Verb(
        "attnlab.cli.verbs.plan:plan",
        "what a command would train, with figures, and what is done already",
        "[NAME] [OVERRIDE ...] [--json]",
        ("gqa_vs_mha", "+experiment=gqa_vs_mha size=M seed=0,1"),
        flags.plan,
    ),
    "status": Verb(
        "attnlab.cli.verbs.plan:status",
        "where the runs of a command stand now; --watch until they end",
        "[NAME] [OVERRIDE ...] [--watch] [--json]",
        ("gqa_vs_mha", "+experiment=gqa_vs_mha seed=0,1 --watch"),
        flags.status,
    ),
    "ladder": Verb(
        "attnlab.cli.verbs.plan:ladder",
        "an experiment at every size of a ladder: does its answer hold with size?",
        "+experiment=NAME [ladder=NAME] [OVERRIDE ...]",
        ("+experiment=gqa_vs_mha", "+experiment=gqa_vs_mha ladder=two_cores 'arms=[mha,gqa]'"),
        flags.for_hydra,
        more="The same as +experiment=NAME ladder=two_cores, and `plan` and `status` take that. Each rung is "
        "a comparison\nwith a report of its own; NAME@two_cores has what they say together.",
    ),
    "compare": Verb(
        "attnlab.cli.verbs.compare:main",
        "arms from the command line, as in compare heads=mha heads=gqa",
        "ARM ARM [ARM or OVERRIDE ...]",
        ('"heads=mha" "heads=gqa position=rope"', "heads=mha heads=gqa heads=mqa seed=0,1 margin=0.05"),
        flags.for_hydra,
        more="The first arm is the baseline. A later word that sets what an arm sets is "
        "an arm too; any\nother is for all arms. The margin is what 5 % less training would cost, "
        "which takes six runs of the\nbaseline to tell; margin=0.05 is in nats and takes none.",
    ),
    "judge": Verb(
        "attnlab.cli.verbs.judge:main",
        "is B better than A? A verdict as JSON, and an exit status, for programs that propose changes",
        "A B [--metric NAME] [--margin M] [--budget B] [OVERRIDE ...]",
        ('"heads=mha" "heads=gqa position=rope"', "heads=mha mine.yaml --margin 0.02 --budget parameters"),
        flags.judge,
        more="A and B are overrides, or yaml files of a run's config. Better: by more than the margin. More\n"
        "seeds are trained while that is open. Ends with 0 better, 3 not better, 4 undecided, 5 not\n"
        "comparable, 2 bad input, 1 where a run failed and nothing was decided.",
    ),
    "clean": Verb(
        "attnlab.cli.verbs.clean:main",
        "the store's size; removes old runs that nothing refers to, after asking",
        "[KEY=VALUE ...] [--forget NAME] [--yes]",
        ("--yes --forget mha_vs_gqa", "paths.runs=/data/runs paths.reports=reports paths.reports=old days=7"),
        flags.clean,
        (
            Key("paths.runs", "the store", text, "runs"),
            Key("paths.reports", "reports, whose runs stay; as often as needed", text, ["reports"], True),
            Key("days", "newer runs stay", natural, 30),
        ),
        more="A run stays while a report lists it, a process trains it, or it is new. Reports are searched\n"
        "in paths.reports and where the commands of this store wrote theirs. The runs of a command that\n"
        "was killed, or whose report is not known here, stay until it is forgotten by name.",
    ),
    "report": Verb(
        "attnlab.cli.verbs.report:report",
        "render a report, or a folder of them with index and ledger, from its data; --diff A B compares two",
        "FOLDER | --diff A B | --now OVERRIDE ... [--json]",
        ("reports/gqa_vs_mha", "--diff reports/A reports/B"),
        flags.report,
    ),
    "claims": Verb(
        "attnlab.cli.verbs.claims:main",
        "run again what reference reports found, and fail where it is not so",
        "[FOLDER] [OVERRIDE ...] [--all] [--json]",
        ("reports/reference", "reports/reference --all logger=none"),
        flags.claims,
    ),
    "inspect": Verb(
        "attnlab.cli.verbs.inspect:main",
        "where a trained model looks in a text of yours",
        "KEY=VALUE ...",
        (
            'experiment=gqa_vs_mha arm=gqa seed=400 text="the cat sat on the mat" layer=1 head=0',
            'checkpoint=FOLDER text="..." layer=2 head=0 to=FOLDER',
        ),
        flags.words,
        (
            *_TRAINED,
            Key("experiment", "what trained it, with arm=, seed= and where need be size= or data="),
            Key("arm", "its arm"),
            Key("seed", "its seed (left out, the lowest that is finished)", whole),
            Key("text", "what it reads"),
            Key("layer", "this layer alone", whole),
            Key("head", "this head alone", whole),
            Key("top", "links shown of every token", positive, 3),
            Key("to", "the page's folder (default reports/inspect/NAME)", text),
        ),
        more=f"The page opens at the layer and head that are named.\n{_OWN}",
        reads="text",
        overrides=True,
    ),
    "check": Verb(
        "attnlab.cli.verbs.check:main",
        "run the conformance laws over the shipped variants, or over your own",
        "[OVERRIDE ...] [--config-dir DIR]",
        ("heads=gqa", "--config-dir myconf mask=banded"),
        flags.check,
        more="Ends with 1 where a law failed.",
    ),
    "new": Verb(
        "attnlab.cli.new.verb:main",
        "a mask, heads, a task, ... of your own: a module, a yaml and a test that work, to be changed",
        "KIND NAME [--into FOLDER]",
        ("mask banded", "experiment sooner --into mine"),
        flags.new,
        more="Nothing is overwritten. What to run next is printed.",
    ),
    "generate": Verb(
        "attnlab.cli.verbs.generate:main",
        "what a trained model writes after a prompt, as it writes it",
        "KEY=VALUE ...",
        (
            'run=ID prompt="the " new_tokens=200 temperature=0.8 top_p=0.95 seed=1',
            'checkpoint=FOLDER prompt="..." decode=static compile=true',
        ),
        flags.words,
        (
            *_TRAINED,
            Key("prompt", "what it goes on from"),
            Key("new_tokens", "how many tokens it writes at most", at_most(NEW_TOKENS, whole), 200),
            Key("stop", "text whose last token ends it"),
            Key("temperature", "0 takes the likeliest token", number),
            Key("top_k", "draw among so many of the likeliest tokens", whole),
            Key("top_p", "draw among the likeliest tokens that share this probability", number),
            Key("seed", "decides what is drawn", whole),
            Key("decode", "another cache, a value of the axis decode"),
            Key("compile", "compile the step of one token; needs decode=static", flag),
            Key("threads", "of the CPU", at_most(THREADS), 1),
        ),
        more=_OWN,
        reads="prompt",
    ),
    "bench": Verb(
        "attnlab.cli.bench.verb:main",
        f"{', '.join(SUBJECTS[:-1])} or {SUBJECTS[-1]}, side by side; --json",
        "NAME [KEY=VALUE ...] [--json]",
        ("decode", "start experiment=gqa_vs_mha rounds=5 --json"),
        flags.bench,
        (
            Key("threads", "of the CPU; left out, one where this process measures", at_most(THREADS)),
            Key("rounds", "how often each thing is measured; left out, the subject's own", positive),
        ),
        more="Other words are overrides of the config that is measured; for start, experiment=NAME and "
        "overrides of its\ncommand. size=debug is the smallest setting of every NAME: a tiny model, few "
        "lengths and steps. Where a\npart fails (exit status 1), on SIGTERM (143) and on Ctrl-C (130), the "
        "rows measured before are\nprinted.",
        overrides=True,
    ),
    "corpus": Verb(
        "attnlab.cli.verbs.corpus:main",
        "what a text is made of (show), or all of it in one file that travels (export)",
        "show|export OVERRIDE ... [to=FILE]",
        ("show data=code", "export data=code to=code.gz"),
        flags.words,
        (Key("to", "the file that export writes; one with other content is left as it is", text),),
        more="The words are overrides of a run's config, of which data= and what is below it count.",
        overrides=True,
    ),
    "complete": Verb(
        "attnlab.cli.complete:main",
        "what a shell loads to complete attnlab's words",
        "bash|zsh|fish",
        ("bash > ~/.attnlab.bash", "fish > ~/.config/fish/completions/attnlab.fish"),
        flags.complete,
        more="It completes the command `attnlab`. bash: `source` the file in ~/.bashrc; zsh: _attnlab in a\n"
        "folder of $fpath.",
    ),
    "schema": Verb(
        "attnlab.cli.verbs.schema:main",
        "the JSON schema of an experiment file, or of a run's spec, record or report",
        "[NAME]",
        ("", "experiment > experiment.json"),
        flags.schema,
    ),
}  # fmt: skip
