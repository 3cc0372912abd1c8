"""`judge`: verdict in JSON and exit status, on toy runs where four heads lose 0.12 nats."""

import json
import subprocess
import sys
from argparse import Namespace

import pytest
from omegaconf import OmegaConf
from toys import TOY

from attnlab.cli.verbs.compare import build_experiment
from attnlab.cli.verbs.judge_configs import build_judge_experiment
from attnlab.cli.verdict_output import MAX_LINES, print_lines
from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.report.schema import load_report
from attnlab.report.tables.wording import describe_claim

SEEDS = "looks=[3,5]"


@pytest.fixture
def run_verb(attnlab):
    """`run_verb(line)`: run a line over the toy config in a new process; return status, stdout and stderr."""

    def call(line):
        words = [sys.executable, "-m", "attnlab", *line.split(), "--config-path", str(TOY / "conf")]
        settings = {"cwd": attnlab.folder, "env": attnlab.environment, "text": True, "timeout": 60}
        result = subprocess.run(words, capture_output=True, **settings)
        return result.returncode, result.stdout, result.stderr

    return call


BETTER = "heads=four heads=one"


@pytest.mark.parametrize(
    ("line", "status", "word"),
    [
        (f"{BETTER} --margin 0.02 {SEEDS}", 0, "better"),
        pytest.param(f"heads=one heads=four --margin 0.02 {SEEDS}", 3, "not better", marks=pytest.mark.rare),
        pytest.param(f"{BETTER} --margin 0.12 {SEEDS}", 4, "inconclusive", marks=pytest.mark.rare),
        (f"{BETTER} --margin=0.02 --budget=cache {SEEDS}", 5, "not comparable"),
        pytest.param(f"{BETTER} --margin 0.02 seed=0 looks=null", 4, "inconclusive", marks=pytest.mark.rare),
    ],
)
def test_exit_status_agrees_with_the_json(run_verb, attnlab, line, status, word):
    exit_status, out, err = run_verb(f"judge {line} --json")
    assert exit_status == status, err
    verdict = json.loads(out)
    report = attnlab.folder / verdict["report"]
    assert report.with_name(f"{report.parent.name}.yaml").is_file()
    [claim] = load_report(report).verdict.claims
    assert (verdict["verdict"], verdict["sentence"]) == (word, describe_claim(claim))
    assert verdict["exploratory"] == claim.exploratory
    assert verdict["command"].startswith("python -m attnlab judge heads=")
    assert verdict["cost"]["a"]["kv_bytes_per_token"] != verdict["cost"]["b"]["kv_bytes_per_token"]
    assert err.splitlines()[-1] == f"page: {report.with_name('report.html').relative_to(attnlab.folder)}"


def test_another_margin_keeps_the_first_report(run_verb, attnlab):
    def judge(margin):
        out = run_verb(f"judge {BETTER} --margin {margin} looks=[3] --json")[1]
        return attnlab.folder / json.loads(out)["report"]

    def read_files(report):
        return {path.name: path.read_bytes() for path in report.parent.iterdir() if path.is_file()}

    first = judge("0.02")
    files = read_files(first)
    second = judge("0.12")
    assert load_report(second).verdict.claims[0].exploratory
    assert (second.parent != first.parent, read_files(first)) == (True, files)
    assert judge("0.02") == first, "the same command updates its own report"


def test_bad_input_exits_with_2_and_trains_nothing(run_verb, attnlab):
    exit_status, out, err = run_verb("judge heads=four heads=nobody --margin 0.02 --json")
    assert (exit_status, out, "nobody" in err, attnlab.load_attempts()) == (2, "", True, [])


def build(line, *folders, metric=None, margin=None, budget=None):
    """Build the experiment of a line; return it with the keys of its claim, and the remaining overrides."""
    options = Namespace(words=line.split(), metric=metric, margin=margin, budget=budget)
    experiment, remaining = build_judge_experiment(options, *folders)
    return experiment["claims"][0] | experiment, remaining


CALIBRATION = {"seeds": [200, 201, 202]}


@pytest.mark.parametrize(
    ("line", "flags", "values"),
    [
        ("size=M", {"margin": "0.04"}, {"arm": "gqa", "is": "below", "threshold": -0.04}),
        (
            "direction=higher",
            {"margin": "0.04", "metric": "val/accuracy"},
            {"is": "above", "threshold": 0.04, "controlled": ["tokens"]},
        ),
        ("", {}, {"margin": {"training": "5 %"}, "threshold": "-margin", "compute_calibration": CALIBRATION}),
        ("", {"margin": "2%"}, {"margin": {"training": "2%"}, "threshold": "-margin"}),
        ("", {"margin": " 2.5 % "}, {"margin": {"training": "2.5%"}, "compute_calibration": CALIBRATION}),
        (
            "",
            {"budget": "parameters"},
            {"controlled": ["parameters", "tokens"], "match": "params", "match_by": "model.ffn_width"},
        ),
    ],
)
def test_better_means_beyond_the_margin_at_equal_budgets(line, flags, values):
    experiment, remaining = build(f"heads=mha heads=gqa {line}", **flags)
    assert ({key: experiment[key] for key in values}, remaining) == (values, [])
    assert experiment["overrides"] == [word for word in line.split() if word.startswith("size=")]
    assert experiment["looks"][0] == 4, "more seeds while it is open"


def test_an_arm_may_be_a_yaml_file(tmp_path):
    """Groups select options, interpolations stay, other contents have other names, and none is an error."""
    file = tmp_path / "mine.yaml"
    names = {build("heads=one heads=two", [TOY / "conf"])[0]["name"]}
    names.add(build_experiment([["heads=one"], ["heads=two"]], [], [TOY / "conf"])[0]["name"])
    for text, overrides in {
        "heads: four\n+preset: gemma3\nmodel: {ffn_width: '${times:2,${model.dim}}'}\n": [
            "heads=four", "+preset=gemma3", "++model.ffn_width='${times:2,${model.dim}}'",
        ],
        "optim: {lr: 1e-3, compile: true, min_lr: null}\nmodel: {note: 'a b', sizes: [1, 2]}": [
            "++optim.lr=0.001", "++optim.compile=true", "++optim.min_lr=null", "++model.note='a b'",
            "++model.sizes=[1,2]",
        ],
    }.items():  # fmt: skip
        file.write_text(text)
        experiment, _ = build(f"heads=one {file}", [CONF, TOY / "conf"])
        assert experiment["arm_overrides"]["mine"] == overrides
        names.add(experiment["name"])
        question = OmegaConf.create(experiment)["question"]
        assert f"Is {' '.join(overrides)} better than heads=one?" == question
    assert len(names) == 4
    for content in ("", "- a\n", "a: [1\n", "defaults: [heads: gqa]\n"):
        file.write_text(content)
        with pytest.raises(InvalidConfig, match=r"mine\.yaml"):
            build(f"heads=one {file}")


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("heads=mha", {}, "judge needs two arms"),
        ("heads=mha heads=gqa", {"budget": "parameter"}, "nearest: parameters"),
        ("heads=mha heads=gqa heads=mqa", {}, "set it in one place"),
        ("heads=mha nowhere.yaml", {}, "nowhere.yaml"),
        ("heads=mha heads=gqa", {"margin": "some"}, "give a number"),
    ],
)
def test_invalid_arguments_are_rejected(line, flags, message):
    with pytest.raises(InvalidConfig, match=message):
        build(line, **flags)


def test_the_verdict_is_the_last_of_eight_lines(capsys):
    notes = [f"EXPLORATORY: reason {number} " + "x" * 70 for number in range(5)]
    print_lines(["report: " + "y" * 100, *notes], ["the verdict"], "report.json")
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-2:]) == (MAX_LINES, ["... more: report.json", "the verdict"])
    assert lines[0] == "report: " + "y" * 100 or lines[1] == "  " + "y" * 100, "a path is not broken"


@pytest.mark.parametrize("flag", ["", "--json"])
def test_compare_prints_its_verdicts_alone_on_stdout(run_verb, attnlab, flag):
    status, out, err = run_verb(f"compare heads=four heads=one heads=two margin=0.2 seed=0,1,2 {flag}")
    assert status == 0, err
    [source] = (attnlab.folder / "reports").glob("four_vs_one_vs_two*/report.json")
    claims = load_report(source).verdict.claims
    name = str(source.relative_to(attnlab.folder))
    if flag:
        document = json.loads(out)
        assert [row["verdict"] for row in document["claims"]] == [claim.verdict for claim in claims]
        assert document["report"] == name
        return
    lines = out.splitlines()
    assert (len(lines) <= MAX_LINES, f"report: {name}" in lines) == (True, True)
    assert lines[-1].startswith("  ") or claims[-1].comparison_text in lines[-1]
