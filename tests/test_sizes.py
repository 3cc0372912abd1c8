"""Sizes M and L match README, and every experiment runs at M.

Each composes, fits a GPU of 80 GB, reads its text at most four times, and takes its first two steps.
"""

import re
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from sampling import sample
from toys import plan_all_shipped

from attnlab.cli.run_config import compose_run_config
from attnlab.config import CONF
from attnlab.model.build import build_model, instantiate_config
from attnlab.store.fingerprint import flatten_config
from attnlab.store.run_schema import RunEstimate
from attnlab.training.estimates import epoch_counts, training_memory

README = Path(__file__).parents[1] / "README.md"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
GPU_MEMORY = 80e9  # bytes


@pytest.mark.parametrize("name", ["M", "L"])
def test_size_comment_and_readme_agree_with_the_config(name):
    text = (CONF / "size" / f"{name}.yaml").read_text()
    size = yaml.safe_load(text)
    parameters = 12 * size["model"]["n_layers"] * size["model"]["dim"] ** 2 / 1e6
    tokens = size["data"]["batch_size"] * size["data"]["length"] * size["trainer"]["max_steps"] / 1e6
    summary = f"{parameters:.0f} million parameters without embeddings, {tokens:.0f} million tokens"
    assert summary in text
    assert f"{tokens / parameters:.2g}".rstrip("0").rstrip(".") in text.split(summary)[1].split("\n")[0]
    row = next(overrides for overrides in README.read_text().splitlines() if overrides.startswith("| `size`"))
    [numbers] = re.findall(rf"`{name}` \((\d+)M[^,]*, (\d+)M tokens", row)
    assert numbers == (f"{parameters:.0f}", f"{tokens:.0f}")


@pytest.mark.parametrize("file", sorted((CONF / "size").glob("*.yaml")), ids=lambda file: file.stem)
def test_no_other_group_replaces_a_value_of_a_size(file):
    values = dict(flatten_config(OmegaConf.to_container(OmegaConf.load(file))))
    composed = dict(flatten_config(compose_run_config([f"size={file.stem}"])))
    assert {key: composed[key] for key in values} == values


class StubChecker:
    """A checker with constant estimates."""

    def check(self, config):
        return RunEstimate(parameters=5, tokens=7, flops_per_token=3, kv_bytes_per_token=2, lr=0.1)


def plan_configs(name, cache):
    experiment = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    overrides = [f"+experiment={name}", "size=M", "tune=null", "compute_calibration=null", "margin=1",
            "claims=[]", "controlled=[]",
            "match=none", "++unmatched=[]", f"arms=[{experiment['baseline']}]", "logger=none",
            f"paths.cache={cache}"]  # fmt: skip
    return {plan.name: plan.runs[0].config for plan in plan_all_shipped(overrides, StubChecker())}


@pytest.mark.rare
@pytest.mark.timeout(900)
def test_size_m_fits_a_gpu_reads_its_text_at_most_four_times_and_takes_two_steps(corpus_cache):
    """One test for all, since most runs are equal at this size."""
    configs = {}
    for name in sample(EXPERIMENTS, 2):
        configs |= plan_configs(name, corpus_cache)
    training = {name: config for name, config in configs.items() if not config.get("measurement")}
    assert training
    distinct = {
        str([config[key] for key in ("model", "data", "optim")]): name for name, config in training.items()
    }
    losses = {name: train_two_steps(training[name]) for name in distinct.values()}
    assert all(0 < loss < 20 for step_losses in losses.values() for loss in step_losses), losses


def train_two_steps(config):
    data = instantiate_config(config["data"])
    epoch_counts.validate_epochs(config, data)
    assert (epoch_counts.count_epochs(config, data.task) or 0) <= 4
    with torch.device("meta"):
        module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    assert training_memory.estimate_peak_memory(config, module, data, "cuda") < GPU_MEMORY
    config["data"]["batch_size"] = max(1, config["data"]["batch_size"] // 100)
    data = instantiate_config(config["data"])
    module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    optimizer, schedule = module.optimizer(config["trainer"]["max_steps"])
    losses = []
    for step in range(2):
        batch = data.task.train_batch(0, step, config["data"]["batch_size"])
        loss = module.losses(batch).sum() / (batch["targets"] >= 0).sum()  # bfloat16 is slow on a CPU
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses
