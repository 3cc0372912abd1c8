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
def run_judge(attnlab):
    def call(*words):
        line = [
            sys.executable,
            "-m",
            "attnlab",
            "judge",
            *words,
            "--json",
            "--config-path",
            str(TOY / "conf"),
        ]
        process_options = {"cwd": attnlab.folder, "env": attnlab.environment, "text": True, "timeout": 60}
        result = subprocess.run(line, capture_output=True, **process_options)
        return result.returncode, result.stdout, result.stderr

    return call


@pytest.mark.parametrize(
    ("line", "status", "word"),
    [
        (["heads=four", "heads=one", "--margin", "0.02", SEEDS], 0, "better"),
        pytest.param(
            ["heads=one", "heads=four", "--margin", "0.02", SEEDS], 3, "not better", marks=pytest.mark.rare
        ),
        pytest.param(
            ["heads=four", "heads=one", "--margin", "0.12", SEEDS], 4, "inconclusive", marks=pytest.mark.rare
        ),
        (["heads=four", "heads=one", "--margin=0.02", "--budget=cache", SEEDS], 5, "not comparable"),
        pytest.param(
            ["heads=four", "heads=one", "--margin", "0.02", "seed=0", "looks=null"], 4, "inconclusive",
            marks=pytest.mark.rare,
        ),
    ],
)  # fmt: skip
def test_exit_status_agrees_with_the_json(run_judge, attnlab, line, status, word):
    exit_status, out, err = run_judge(*line)
    assert exit_status == status, err
    verdict = json.loads(out)
    assert verdict["verdict"] == word
    report = attnlab.folder / verdict["report"]
    assert report.is_file()
    assert list(report.parent.glob(f"{verdict['report'].split('/')[-2]}.yaml"))
    [claim] = load_report(report.with_name("report.json")).verdict.claims
    assert (verdict["sentence"], verdict["exploratory"]) == (describe_claim(claim), claim.exploratory)
    assert verdict["command"].startswith("python -m attnlab judge heads=")
    assert verdict["cost"]["a"]["kv_bytes_per_token"] != verdict["cost"]["b"]["kv_bytes_per_token"]
    assert "verdict" not in err or "{" not in err, "the JSON is on stdout alone"
    assert err.splitlines()[-1] == f"page: {report.with_name('report.html').relative_to(attnlab.folder)}"


def test_another_margin_keeps_the_first_report(run_judge, attnlab):
    def judge(margin):
        path = json.loads(run_judge("heads=four", "heads=one", "--margin", margin, "looks=[3]")[1])["report"]
        return attnlab.folder / path

    first = judge("0.02")
    files = {path.name: path.read_bytes() for path in first.parent.iterdir() if path.is_file()}
    second = judge("0.12")
    assert load_report(second.with_name("report.json")).verdict.claims[0].exploratory
    assert second.parent != first.parent
    assert files == {path.name: path.read_bytes() for path in first.parent.iterdir() if path.is_file()}
    assert judge("0.02") == first, "the same command updates its own report"


def test_bad_input_exits_with_2_and_trains_nothing(run_judge, attnlab):
    exit_status, out, err = run_judge("heads=four", "heads=nobody", "--margin", "0.02")
    assert (exit_status, out) == (2, "")
    assert "nobody" in err
    assert attnlab.load_attempts() == []


def make_options(*words, metric=None, margin=None, budget=None):
    return Namespace(words=list(words), metric=metric, margin=margin, budget=budget)


def test_better_means_beyond_the_margin():
    experiment, remaining = build_judge_experiment(
        make_options("heads=mha", "heads=gqa", "size=M", margin="0.04")
    )
    [claim] = experiment["claims"]
    assert (claim["arm"], claim["is"], claim["threshold"]) == ("gqa", "below", -0.04)
    assert (experiment["overrides"], remaining) == (["size=M"], [])
    assert experiment["looks"][0] == 4, "more seeds while it is open"
    experiment, _ = build_judge_experiment(
        make_options("heads=mha", "heads=gqa", "direction=higher", metric="val/accuracy", margin="0.04")
    )
    assert (experiment["claims"][0]["is"], experiment["claims"][0]["threshold"]) == ("above", 0.04)


@pytest.mark.parametrize(("margin_flag", "margin"), [(None, "5 %"), ("2%", "2%"), (" 2.5 % ", "2.5%")])
def test_margin_may_be_a_percentage_of_training_compute(margin_flag, margin):
    experiment, _ = build_judge_experiment(make_options("heads=mha", "heads=gqa", margin=margin_flag))
    assert experiment["margin"] == {"training": margin}
    assert experiment["claims"][0]["threshold"] == "-margin"
    assert experiment["compute_calibration"]


def test_budget_is_controlled_in_addition_to_tokens():
    experiment, _ = build_judge_experiment(make_options("heads=mha", "heads=gqa", budget="parameters"))
    assert (experiment["controlled"], experiment["match"], experiment["match_by"]) == (
        ["parameters", "tokens"], "params", "model.ffn_width",
    )  # fmt: skip
    assert build_judge_experiment(make_options("heads=mha", "heads=gqa"))[0]["controlled"] == ["tokens"]


def test_an_arm_may_be_a_yaml_file(tmp_path):
    """Groups select options, interpolations stay, other contents have other names, and none is an error."""
    file = tmp_path / "mine.yaml"
    names = {build_judge_experiment(make_options("heads=one", "heads=two"), [TOY / "conf"])[0]["name"]}
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
        experiment, _ = build_judge_experiment(make_options("heads=one", str(file)), [CONF, TOY / "conf"])
        assert experiment["arm_overrides"]["mine"] == overrides
        names.add(experiment["name"])
        question = OmegaConf.create(experiment)["question"]
        assert f"Is {' '.join(overrides)} better than heads=one?" == question
    assert len(names) == 4
    for content in ("", "- a\n", "a: [1\n", "defaults: [heads: gqa]\n"):
        file.write_text(content)
        with pytest.raises(InvalidConfig, match=r"mine\.yaml"):
            build_judge_experiment(make_options("heads=one", str(file)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (make_options("heads=mha"), "judge needs two arms"),
        (make_options("heads=mha", "heads=gqa", budget="parameter"), "nearest: parameters"),
        (make_options("heads=mha", "heads=gqa", "heads=mqa"), "set it in one place"),
        (make_options("heads=mha", "nowhere.yaml"), "nowhere.yaml"),
        (make_options("heads=mha", "heads=gqa", margin="some"), "give a number"),
    ],
)
def test_invalid_arguments_are_rejected(options, message):
    with pytest.raises(InvalidConfig, match=message):
        build_judge_experiment(options)


def test_the_verdict_is_the_last_of_eight_lines(capsys):
    notes = [f"EXPLORATORY: reason {number} " + "x" * 70 for number in range(5)]
    print_lines(["report: " + "y" * 100, *notes], ["the verdict"], "report.json")
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-2:]) == (MAX_LINES, ["... more: report.json", "the verdict"])
    assert lines[0] == "report: " + "y" * 100 or lines[1] == "  " + "y" * 100, "a path is not broken"


@pytest.mark.parametrize("as_json", [False, True])
def test_compare_prints_its_verdicts_alone_on_stdout(attnlab, as_json):
    line = ["compare", "heads=four", "heads=one", "heads=two", "margin=0.2", "seed=0,1,2"]
    line += ["--config-path", str(TOY / "conf"), *(["--json"] if as_json else [])]
    result = subprocess.run(
        [sys.executable, "-m", "attnlab", *line],
        cwd=attnlab.folder, env=attnlab.environment, text=True, timeout=60, capture_output=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    [source] = (attnlab.folder / "reports").glob("four_vs_one_vs_two*/report.json")
    claims = load_report(source).verdict.claims
    name = str(source.relative_to(attnlab.folder))
    if as_json:
        document = json.loads(result.stdout)
        assert [row["verdict"] for row in document["claims"]] == [claim.verdict for claim in claims]
        assert document["report"] == name
        return
    lines = result.stdout.splitlines()
    assert (len(lines) <= MAX_LINES, f"report: {name}" in lines) == (True, True)
    assert lines[-1].startswith("  ") or claims[-1].comparison_text in lines[-1]
