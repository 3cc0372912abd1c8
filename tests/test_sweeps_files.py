"""Every file in `sweeps/` says what it is for, and its command composes as it stands."""

import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from attnlab.config import CONF, register_resolvers

SWEEPS = Path(__file__).parent.parent / "sweeps"
SCRIPTS, YAMLS = sorted(SWEEPS.glob("*.sh")), sorted(SWEEPS.glob("*.yaml"))


def compose(line: list[str], mode: RunMode):
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return GlobalHydra.instance().config_loader().load_configuration("config", line, mode)


def points(path: Path) -> list[list[str]]:
    """The command lines of a W&B sweep's corners, as its agent writes `${args_no_hyphens}`."""
    sweep = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    axes = []
    for key, axis in sweep["parameters"].items():
        values = axis.get("values") or [axis[end] for end in ("value", "min", "max") if end in axis]
        axes.append([f"{key}={value}" for value in values])
    command = sweep["command"]
    assert command[:4] == ["${env}", "${interpreter}", "-m", "attnlab"]
    assert command[-1] == "${args_no_hyphens}"
    longest = max(len(axis) for axis in axes)
    corners = itertools.islice(zip(*map(itertools.cycle, axes), strict=True), longest)
    return [[*command[4:-1], *corner] for corner in corners]


@pytest.mark.parametrize("path", [*SCRIPTS, *YAMLS], ids=lambda path: path.name)
def test_a_launch_file_says_its_question_its_cost_and_its_command(path):
    text = path.read_text()
    for word in ("# Question: ", "# Cost: ", "# Command:"):
        assert word in text
    assert path.name in text  # the command names the file


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_command_of_a_script_composes_with_its_launcher(path, tmp_path):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DEVICE": "a card"}
    told = subprocess.run([path, "seed=7"], env=environment, capture_output=True, text=True, check=True)
    words = told.stdout.splitlines()
    assert words[:2] == ["-m", "attnlab"]
    assert words[-1] == "seed=7"  # what follows on the line has the last word
    config = compose([word for word in words[2:] if not word.startswith("seed=")], RunMode.MULTIRUN)
    assert config.hydra.launcher._target_.lower().endswith(f"{path.stem.partition('_')[0]}launcher")
    assert (config.size, config.sweep.device) == (path.stem.rpartition("_")[2], "a card")
    assert config.arms


@pytest.mark.rare
@pytest.mark.parametrize("target", [f"gpu-{n}" for n in range(1, 9)])
def test_what_is_tried_on_a_card_composes(target):
    made = subprocess.run(
        ["make", "--no-print-directory", "-nB", target, "PY=python3"],
        cwd=SWEEPS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [shlex.split(part) for line in made.stdout.splitlines() for part in re.split("&&|>", line)]
    tried = 0
    for words in commands:
        if "attnlab" in words:
            verb, *rest = words[words.index("attnlab") + 1 :]
            rest = [word for word in rest if not word.startswith("--")]
            if verb == "bench":
                importlib.import_module(f"attnlab.cli.bench.subjects.{rest[0]}").prepare(rest[1:], None)
            else:
                assert compose([word for word in (verb, *rest) if word != "ladder"], RunMode.MULTIRUN).arms
        elif "pytest" in words:
            assert (SWEEPS.parent / words[words.index("pytest") + 1]).exists()
        else:
            continue
        assert words[:3] == ["timeout", "--signal=INT", "--kill-after=20"]
        tried += 1
    assert tried


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.name)
def test_every_value_of_a_sweep_composes_as_one_run(path):
    lines = points(path)
    for line in lines:
        config = compose(line, RunMode.RUN)
        assert config.logger.mode == "online"
        assert "arms" not in config
    assert len({tuple(line) for line in lines}) == len(lines) > 1


@pytest.mark.rare
def test_inside_an_agent_the_agents_run_id_wins(tmp_path):
    code = """
import sys
from pathlib import Path
from attnlab.training.loggers.wandb import Wandb
wandb = Wandb(mode="offline", project="p", entity=None, report=False, workspace=False, patience=20)
run = wandb.open(Path("here"), Path("."), id="ours")
print(run.id, run.settings.sweep_id)
run.finish()
"""
    environment = {**os.environ, "WANDB_SWEEP_ID": "sweep", "WANDB_RUN_ID": "agents", "WANDB_MODE": "offline"}
    environment["PYTHONPATH"] = str(SWEEPS.parent)
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["agents", "sweep"]
