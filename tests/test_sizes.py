"""Sizes M and L are what README says, and every declaration of M would run: it composes, fits a card of
80 GB, reads its text four times at most, and takes its first two steps.
"""

import re
from pathlib import Path

import pytest
import torch
import yaml
from sampling import sample
from toys import plans_of_shipped

from attnlab.config import CONF
from attnlab.model.build import build_model, make
from attnlab.store.schema import Estimate
from attnlab.training.estimates import epochs, memory

README = Path(__file__).parents[1] / "README.md"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
CARD = 80e9  # bytes


@pytest.mark.parametrize("name", ["M", "L"])
def test_a_size_is_said_alike_where_it_is_made_and_in_readme(name):
    text = (CONF / "size" / f"{name}.yaml").read_text()
    size = yaml.safe_load(text)
    parameters = 12 * size["model"]["n_layers"] * size["model"]["dim"] ** 2 / 1e6
    tokens = size["data"]["batch_size"] * size["data"]["length"] * size["trainer"]["max_steps"] / 1e6
    said = f"{parameters:.0f} million parameters without embeddings, {tokens:.0f} million tokens"
    assert said in text
    assert f"{tokens / parameters:.2g}".rstrip("0").rstrip(".") in text.split(said)[1].split("\n")[0]
    row = next(line for line in README.read_text().splitlines() if line.startswith("| `size`"))
    [told] = re.findall(rf"`{name}` \((\d+)M[^,]*, (\d+)M tokens", row)
    assert told == (f"{parameters:.0f}", f"{tokens:.0f}")


class Stub:
    """What the checking process answers without looking."""

    def check(self, config):
        return Estimate(parameters=5, tokens=7, flops_per_token=3, kv_bytes_per_token=2, lr=0.1)


def planned(name, cache):
    declared = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    line = [f"+experiment={name}", "size=M", "tune=null", "exchange=null", "margin=1", "claims=[]", "held=[]",
            "match=none", "++unmatched=[]", f"arms=[{declared['baseline']}]", "logger=none",
            f"paths.cache={cache}"]  # fmt: skip
    return {made.name: made.runs[0].config for made in plans_of_shipped(line, Stub())}


@pytest.mark.rare
@pytest.mark.timeout(900)
def test_m_fits_a_card_reads_its_text_four_times_at_most_and_takes_two_steps(texts_kept):
    """One test for all, as most are alike at this size."""
    found = {}
    for name in sample(EXPERIMENTS, 2):
        found |= planned(name, texts_kept)
    training = {name: config for name, config in found.items() if not config.get("measurement")}
    assert training
    different = {
        str([config[key] for key in ("model", "data", "optim")]): name for name, config in training.items()
    }
    losses = {name: two_steps(training[name]) for name in different.values()}
    assert all(0 < loss < 20 for some in losses.values() for loss in some), losses


def two_steps(config):
    data = make(config["data"])
    epochs.check(config, data)
    assert (epochs.epochs(config, data.task) or 0) <= 4
    with torch.device("meta"):
        module = make(config["optim"], model=build_model(config, data.task.vocab_size))
    assert memory.peak(config, module, data, "cuda") < CARD
    config["data"]["batch_size"] = max(1, config["data"]["batch_size"] // 100)
    data = make(config["data"])
    module = make(config["optim"], model=build_model(config, data.task.vocab_size))
    optimizer, schedule = module.optimizer(config["trainer"]["max_steps"])
    losses = []
    for step in range(2):
        batch = data.task.train_batch(0, step, config["data"]["batch_size"])
        loss = module.losses(batch).sum() / (batch["targets"] >= 0).sum()  # bfloat16 is slow without a card
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses
