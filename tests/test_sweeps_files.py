"""Launch files in `sweeps/` state question, cost and command, and their commands compose."""

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
FILES = sorted([*SWEEPS.glob("*.sh"), *SWEEPS.glob("*.yaml")])
SCRIPTS = [path for path in FILES if path.name.startswith(("ray_", "slurm_"))]
YAMLS = [path for path in FILES if path.name.startswith("wandb_")]  # test_worker_recipes.py has the others


def compose_config(line: list[str], mode: RunMode):
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return GlobalHydra.instance().config_loader().load_configuration("config", line, mode)


def expand_sweep(path: Path) -> list[list[str]]:
    """Expand a W&B sweep's values and bounds to command lines, as its agent fills `${args_no_hyphens}`."""
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_launch_file_states_question_cost_and_command(path):
    text = path.read_text()
    for word in ("# Question: ", "# Cost: ", "# Command:"):
        assert word in text
    assert path.name in text  # the command names the file


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_command_composes_with_its_launcher(path, tmp_path):
    fake_python = tmp_path / "python"
    fake_python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake_python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DEVICE": "a card"}
    result = subprocess.run([path, "seed=7"], env=environment, capture_output=True, text=True, check=True)
    words = result.stdout.splitlines()
    assert words[:2] == ["-m", "attnlab"]
    assert words[-1] == "seed=7"  # later words override earlier ones
    config = compose_config([word for word in words[2:] if not word.startswith("seed=")], RunMode.MULTIRUN)
    assert config.hydra.launcher._target_.lower().endswith(f"{path.stem.partition('_')[0]}launcher")
    assert (config.size, config.sweep.device) == (path.stem.rpartition("_")[2], "a card")
    assert config.arms


@pytest.mark.rare
@pytest.mark.parametrize("target", [f"gpu-{n}" for n in range(1, 9)])
def test_gpu_targets_compose(target):
    result = subprocess.run(
        ["make", "--no-print-directory", "-nB", target, "PY=python3"],
        cwd=SWEEPS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [shlex.split(part) for line in result.stdout.splitlines() for part in re.split("&&|>", line)]
    n_commands = 0
    for words in commands:
        if "attnlab" in words:
            verb, *arguments = words[words.index("attnlab") + 1 :]
            arguments = [word for word in arguments if not word.startswith("--")]
            if verb == "bench":
                importlib.import_module(f"benchmarks.subjects.{arguments[0]}").prepare(arguments[1:], None)
            else:
                assert compose_config(
                    [word for word in (verb, *arguments) if word != "ladder"], RunMode.MULTIRUN
                ).arms
        elif "pytest" in words:
            assert (SWEEPS.parent / words[words.index("pytest") + 1]).exists()
        else:
            continue
        assert words[:4] == ["timeout", "--foreground", "--signal=INT", "--kill-after=20"]
        n_commands += 1
    assert n_commands


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.name)
def test_every_sweep_value_composes_as_one_run(path):
    lines = expand_sweep(path)
    for line in lines:
        config = compose_config(line, RunMode.RUN)
        assert config.logger.mode == "online"
        assert "arms" not in config
    assert len({tuple(line) for line in lines}) == len(lines) > 1


@pytest.mark.rare
def test_run_id_of_a_wandb_agent_takes_precedence(tmp_path):
    code = """
import sys
from pathlib import Path
from attnlab.training.loggers.wandb_logger import WandbSettings
wandb = WandbSettings(mode="offline", project="p", entity=None, report=False, workspace=False, patience=20)
run = wandb.open_run(Path("here"), Path("."), id="ours")
print(run.id, run.settings.sweep_id)
run.finish()
"""
    environment = {**os.environ, "WANDB_SWEEP_ID": "sweep", "WANDB_RUN_ID": "agents", "WANDB_MODE": "offline"}
    environment["PYTHONPATH"] = str(SWEEPS.parent)
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["agents", "sweep"]
