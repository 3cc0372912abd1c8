"""`judge`: one verdict in JSON and in the exit status, over the toy tree: four heads lose 0.12 nats."""

import json
import subprocess
import sys
from argparse import Namespace

import pytest
from toys import TOY

from attnlab.cli.verbs.judge import asked
from attnlab.errors import Refused
from attnlab.report.schema import load
from attnlab.report.tables.wording import describe_claim
from attnlab.sweep.plan import overrides

SEEDS = "looks=[3,5]"


@pytest.fixture
def judge(attnlab):
    def call(*words):
        line = [sys.executable, "-m", "attnlab", "judge", *words, "--config-path", str(TOY / "conf")]
        settings = {"cwd": attnlab.folder, "env": attnlab.environment, "text": True, "timeout": 60}
        ended = subprocess.run(line, capture_output=True, **settings)
        return ended.returncode, ended.stdout, ended.stderr

    return call


@pytest.mark.parametrize(
    ("line", "status", "word"),
    [
        (["heads=four", "heads=one", "--margin", "0.02", SEEDS], 0, "better"),
        pytest.param(
            ["heads=one", "heads=four", "--margin", "0.02", SEEDS], 3, "not better", marks=pytest.mark.rare
        ),
        pytest.param(
            ["heads=four", "heads=one", "--margin", "0.12", SEEDS], 4, "undecided", marks=pytest.mark.rare
        ),
        (["heads=four", "heads=one", "--margin=0.02", "--budget=cache", SEEDS], 5, "not comparable"),
        pytest.param(
            ["heads=four", "heads=one", "--margin", "0.02", "seed=0", "looks=null"], 4, "undecided",
            marks=pytest.mark.rare,
        ),
    ],
)  # fmt: skip
def test_the_exit_status_and_the_json_say_the_same(judge, attnlab, line, status, word):
    ended, out, err = judge(*line)
    assert ended == status, err
    told = json.loads(out)
    assert told["verdict"] == word
    report = attnlab.folder / told["report"]
    assert report.is_file()
    [claim] = load(report.with_name("report.json")).verdict.claims
    assert (told["sentence"], told["exploratory"]) == (describe_claim(claim), claim.exploratory)
    assert told["command"].startswith("python -m attnlab judge heads=")
    assert told["cost"]["a"]["kv_bytes_per_token"] != told["cost"]["b"]["kv_bytes_per_token"]
    assert "verdict" not in err or "{" not in err, "the JSON is on stdout alone"


def test_bad_input_ends_with_2_and_trains_nothing(judge, attnlab):
    ended, out, err = judge("heads=four", "heads=nobody", "--margin", "0.02")
    assert (ended, out) == (2, "")
    assert "nobody" in err
    assert attnlab.trained() == []


def options(*words, metric=None, margin=None, budget=None):
    return Namespace(words=list(words), metric=metric, margin=margin, budget=budget)


def test_better_means_by_more_than_the_margin():
    found, left = asked(options("heads=mha", "heads=gqa", "size=M", margin="0.04"))
    [claim] = found["claims"]
    assert (claim["arm"], claim["is"], claim["threshold"], left) == ("gqa", "below", -0.04, ["size=M"])
    assert found["looks"][0] == 4, "more seeds while it is open"
    found, _ = asked(
        options("heads=mha", "heads=gqa", "direction=higher", metric="val/accuracy", margin="0.04")
    )
    assert (found["claims"][0]["is"], found["claims"][0]["threshold"]) == ("above", 0.04)


@pytest.mark.parametrize(("given", "margin"), [(None, "5 %"), ("2%", "2%"), (" 2.5 % ", "2.5%")])
def test_a_margin_may_be_a_share_of_the_training(given, margin):
    found, _ = asked(options("heads=mha", "heads=gqa", margin=given))
    assert found["margin"] == {"training": margin}
    assert found["claims"][0]["threshold"] == "-margin"
    assert found["exchange"]


def test_a_budget_is_held_equal_beside_the_tokens():
    found, _ = asked(options("heads=mha", "heads=gqa", budget="parameters"))
    assert (found["held"], found["match"], found["match_by"]) == (
        ["parameters", "tokens"], "params", "model.ffn_width",
    )  # fmt: skip
    assert asked(options("heads=mha", "heads=gqa"))[0]["held"] == ["tokens"]


def test_a_side_may_be_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "model: {dim: 32, note: 'a b', sizes: [1, 2]}\noptim: {lr: 1e-3, compile: true, min_lr: null}\n"
    )
    found, _ = asked(options("heads=mha", str(file)))
    lines = found["arm_overrides"][found["arms"][1]]
    values = {override.key_or_group: override.value() for override in overrides.parse(lines)}
    assert values == {
        "model.dim": 32, "model.note": "a b", "model.sizes": [1, 2], "optim.lr": 1e-3, "optim.compile": True,
        "optim.min_lr": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (options("heads=mha"), "judge which two"),
        (options("heads=mha", "heads=gqa", budget="parameter"), "nearest: parameters"),
        (options("heads=mha", "heads=gqa", "heads=mqa"), "would hide it"),
        (options("heads=mha", "nowhere.yaml"), "nowhere.yaml"),
        (options("heads=mha", "heads=gqa", margin="some"), "give a number"),
    ],
)
def test_what_cannot_be_judged_is_refused(given, said):
    with pytest.raises(Refused, match=said):
        asked(given)


@pytest.mark.parametrize("content", ["", "- a\n", "a: [1\n"])
def test_a_file_that_sets_nothing_is_refused(tmp_path, content):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(Refused, match=r"mine\.yaml"):
        asked(options("heads=mha", str(file)))
