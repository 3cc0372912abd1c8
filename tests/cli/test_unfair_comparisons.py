"""Regression tests of unfair comparisons: future leakage, and losses per token of two tokenizers."""

import json
import subprocess
import sys

import pytest
from sampling import full
from toys import attnlab  # noqa: F401 - a fixture

from attnlab.errors import InvalidConfig
from attnlab.store.run_schema import RunResult
from attnlab.sweep.execute.progress import describe_ending
from attnlab.sweep.plan import overrides

SMALL = "trainer.max_steps=60 model.n_layers=1 logger=none measure.timing=false measure.maps=0"

PEEK = """
from attnlab.attention.contracts import declare_capabilities


def peek():
    @declare_capabilities(sees_future=True)
    def visible(b, h, q_idx, kv_idx):
        return kv_idx <= q_idx + 1

    return visible


def forgets():
    def visible(b, h, q_idx, kv_idx):
        return kv_idx <= q_idx
"""


@pytest.fixture
def run_command(attnlab):  # noqa: F811
    folder = attnlab.folder / "mine" / "mask"
    folder.mkdir(parents=True)
    (attnlab.folder / "peek.py").write_text(PEEK)
    for name in ("peek", "forgets"):
        (folder / f"{name}.yaml").write_text(
            f"# @package _global_\nmodel: {{attention: {{masks: {{{name}: {{_target_: peek.{name}}}}}}}}}\n"
        )

    def call(line):
        line = [sys.executable, "-m", "attnlab", *line.split(), "--config-dir", "mine"]
        result = subprocess.run(
            line, capture_output=True, cwd=attnlab.folder, env=attnlab.environment, text=True, timeout=280
        )
        return result.returncode, result.stdout, result.stderr

    return call


@pytest.mark.rare
@pytest.mark.timeout(900)
def test_mask_with_future_leakage_wins_no_comparison(run_command):
    status, out, error = run_command(f"judge mask=causal mask=peek --margin 0.05 --json seed=0,1 {SMALL}")
    assert status == 5, error
    verdict = json.loads(out)
    assert verdict["verdict"] == "not comparable"
    assert "peek sees future tokens in 2 of 2 runs" in verdict["sentence"]
    status, out, error = run_command(f"mask=causal,peek,full seed=0,1 {SMALL}")
    assert status == 0, error
    assert "NOT COMPARABLE: sees future tokens in 2 of 2 runs" in " ".join(out.split())
    assert "came out with the lowest" not in out.replace("causal came out with the lowest", "")
    out = run_command(f"mask=full seed=0 {SMALL}")[1]
    assert "SEES FUTURE TOKENS" in out.splitlines()[-1]


@pytest.mark.rare
@full
@pytest.mark.timeout(900)
def test_tokenizers_are_compared_per_byte_only(run_command):
    command = f"judge data/tokenizer=bpe data/tokenizer=char --margin 0.05 --json seed=range(4) {SMALL}"
    status, out, error = run_command(command)
    assert status == 5, error
    reason = "val/loss is per char in char and per bpe in bpe: compare val/bits_per_byte"
    assert reason in json.loads(out)["sentence"]
    status, out, error = run_command(f"{command} --metric val/bits_per_byte")
    assert status != 5, error
    verdict = json.loads(out)
    assert verdict["claim"] in ("REFUTED", "INCONCLUSIVE")
    assert verdict["estimate"] > 0, "char needs more bits for the same bytes"


@pytest.mark.rare
def test_mask_factory_without_return_fails_before_training(run_command):
    status, out, error = run_command("mask=forgets size=debug logger=none")
    assert (status, "peek.forgets returned None" in error, "done" in out) == (2, True, False)


def test_empty_mapping_override_is_rejected():
    with pytest.raises(InvalidConfig, match=r"does not change model\.attention\.masks; .* ~model\.attention"):
        overrides.parse_overrides(["model.attention.masks={}"])
    assert overrides.parse_overrides(["+model.attention.scores={}", "model.attention.masks={a: 1}"])


@pytest.mark.parametrize("word", ["leakage=[b]", "+leakage=[b]"])
def test_leakage_is_preregistered_in_files_only(word):
    with pytest.raises(InvalidConfig, match="only an experiment file can set leakage; remove it"):
        overrides.parse_command([word])


@pytest.mark.parametrize(
    ("leakage", "suffix"),
    [
        ({"sees_future": 1, "next_token": 1}, "SEES FUTURE TOKENS"),
        ({"sees_future": 0, "sees_rows": 1, "next_token": 1}, "SEES OTHER ROWS"),
        ({"next_token": 1, "prefix": 8}, "bidirectional over its first 8 tokens"),
        ({"next_token": 1, "prefix": 0}, "no future tokens seen"),
        ({"sees_future": 1, "next_token": 0}, "s"),
        ({}, "s"),
    ],
)
def test_line_of_a_run_ends_with_its_leakage(leakage, suffix):
    unseen = {"sees_future": 0, "sees_rows": 0} if leakage else {}
    metrics = {"val/loss": 1.25}
    record = RunResult(
        id="a", status="done", seed=0, config={}, metrics=metrics, seconds=3.0, leakage=unseen | leakage
    )
    assert describe_ending(record).endswith(suffix)
