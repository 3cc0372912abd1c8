"""Command lines that an unfair comparison once won: a mask that shows the target, and losses per token of two
tokenizers.
"""

import json
import subprocess
import sys

import pytest
from sampling import full
from toys import attnlab  # noqa: F401 - a fixture

from attnlab.errors import Refused
from attnlab.store.schema import RunRecord
from attnlab.sweep.execute.progress import ending
from attnlab.sweep.plan import overrides

SMALL = ["trainer.max_steps=60", "model.n_layers=1", "logger=none", "measure.timing=false", "measure.maps=0"]

PEEK = """
from attnlab.attention.contracts import declares


def peek():
    @declares(looks_ahead=True)
    def visible(b, h, q_pos, kv_pos):
        return kv_pos <= q_pos + 1

    return visible


def forgets():
    def visible(b, h, q_pos, kv_pos):
        return kv_pos <= q_pos
"""


@pytest.fixture
def run(attnlab):  # noqa: F811
    folder = attnlab.folder / "mine" / "mask"
    folder.mkdir(parents=True)
    (attnlab.folder / "peek.py").write_text(PEEK)
    for name in ("peek", "forgets"):
        (folder / f"{name}.yaml").write_text(
            f"# @package _global_\nmodel: {{attention: {{masks: {{{name}: {{_target_: peek.{name}}}}}}}}}\n"
        )

    def call(*words):
        line = [sys.executable, "-m", "attnlab", *words, "--config-dir", "mine"]
        ended = subprocess.run(
            line, capture_output=True, cwd=attnlab.folder, env=attnlab.environment, text=True, timeout=280
        )
        return ended.returncode, ended.stdout, ended.stderr

    return call


@pytest.mark.rare
@pytest.mark.timeout(900)
def test_a_mask_that_shows_the_target_wins_nothing_though_it_says_so(run):
    status, out, error = run("judge", "mask=causal", "mask=peek", "--margin", "0.05", "seed=0,1", *SMALL)
    assert status == 5, error
    said = json.loads(out)
    assert said["verdict"] == "not comparable"
    assert "peek sees future tokens in 2 of 2 runs" in said["sentence"]
    status, out, error = run("mask=causal,peek,full", "seed=0,1", *SMALL)
    assert status == 0, error
    assert "peek vs causal: NOT COMPARABLE: peek sees future tokens" in out
    assert "came out with the lowest" not in out.replace("causal came out with the lowest", "")
    status, out, error = run("mask=full", "seed=0", *SMALL)
    assert "SEES FUTURE TOKENS" in out.splitlines()[-1]


@pytest.mark.rare
@full
@pytest.mark.timeout(900)
def test_tokenizers_are_compared_by_the_byte_alone(run):
    pair = ("judge", "data/tokenizer=bpe", "data/tokenizer=char", "--margin", "0.05", "seed=range(4)", *SMALL)
    status, out, error = run(*pair)
    assert status == 5, error
    reason = "val/loss is per char in char and per bpe in bpe: compare val/bits_per_byte"
    assert reason in json.loads(out)["sentence"]
    status, out, error = run(*pair, "--metric", "val/bits_per_byte")
    assert status != 5, error
    said = json.loads(out)
    assert said["claim"] in ("REFUTED", "INCONCLUSIVE")
    assert said["estimate"] > 0, "char needs more bits for the same bytes"


@pytest.mark.rare
def test_a_mask_factory_without_a_return_is_an_error_before_any_training(run):
    status, out, error = run("mask=forgets", "size=debug", "logger=none")
    assert status == 2
    assert "peek.forgets returned None" in error
    assert "done" not in out


def test_an_empty_mapping_changes_nothing_and_is_refused():
    with pytest.raises(Refused, match=r"changes nothing of model\.attention\.masks; .* ~model\.attention"):
        overrides.parse(["model.attention.masks={}"])
    assert overrides.parse(["+model.attention.scores={}", "model.attention.masks={a: 1}"])


def test_only_a_file_preregisters_leakage():
    with pytest.raises(Refused, match="only an experiment file says which arms see future tokens"):
        overrides.read(["leakage=[b]"])
    with pytest.raises(Refused, match="only an experiment file"):
        overrides.read(["+leakage=[b]"])


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ({"sees_future": 1, "next_token": 1}, "SEES FUTURE TOKENS"),
        ({"sees_future": 0, "sees_rows": 1, "next_token": 1}, "SEES OTHER ROWS"),
        ({"sees_future": 0, "sees_rows": 0, "next_token": 1, "prefix": 8}, "sees its first 8 tokens whole"),
        ({"sees_future": 0, "sees_rows": 0, "next_token": 1, "prefix": 0}, "no future tokens seen"),
        ({"sees_future": 1, "next_token": 0}, "s"),
        ({}, "s"),
    ],
)
def test_the_line_of_a_run_ends_with_what_it_sees(seen, says):
    record = RunRecord(
        id="a", status="done", seed=0, config={}, metrics={"val/loss": 1.25}, seconds=3.0, leakage=seen
    )
    assert ending(record).endswith(says)
