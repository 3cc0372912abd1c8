"""The sizes of each shipped ladder follow the rules in its file."""

import math
from itertools import pairwise

import pytest
import yaml

from attnlab.config import CONF
from attnlab.store.experiment_schema import LadderConfig

GROWTH = {
    "two_cores": 2.5,
    "four_layers": 2.5,
    "card": 2.5,
    "depth": 2.0,
}  # of parameters and tokens per size
LADDERS = sorted(path.stem for path in (CONF / "ladder").glob("*.yaml"))
BUDGET_LADDERS = ["tokens", "tokens_code", "tokens_recall"]
TOKENS = 25 / 6  # per parameter
LENGTH = 64


def load_ladder(name):
    return LadderConfig.model_validate(yaml.safe_load((CONF / "ladder" / f"{name}.yaml").read_text()))


def parse_size(lines):
    """Return the settings of a ladder size by last key, and its non-embedding parameters."""
    settings = dict(line.split("=") for line in lines)
    keys = {key.rpartition(".")[2]: value for key, value in settings.items()}
    values = {key: int(value) for key, value in keys.items() if key != "precision"}
    return values | {"parameters": 12 * values["n_layers"] * values["dim"] ** 2}


@pytest.mark.parametrize("name", BUDGET_LADDERS)
def test_budgets_double_and_share_seeds_and_rates(name):
    ladder = load_ladder(name)
    assert list(ladder.budgets.values()) == [1, 2, 4, 8]
    assert [f"{multiple:g}x" for multiple in ladder.budgets.values()] == ladder.names
    assert "schedule=wsd" in ladder.overrides, "else there is no trunk to share"
    assert ladder.rates.power == 0, "a trunk has one learning rate"


@pytest.mark.parametrize("name", sorted({*LADDERS} - {*BUDGET_LADDERS}))
def test_sizes_follow_the_growth_rules_of_the_ladder(name):
    ladder, default_every = (
        load_ladder(name),
        yaml.safe_load((CONF / "config.yaml").read_text())["measure"]["every"],
    )
    rungs, growth = [parse_size(lines) for lines in ladder.rungs.values()], GROWTH[name]
    for low, high in pairwise(rungs[:-1] if name == "card" else rungs):
        assert 0.88 * growth < high["parameters"] / low["parameters"] < 1.16 * growth
    assert rungs[-1]["parameters"] / rungs[0]["parameters"] == pytest.approx(
        growth**8 * 5 / 3 if name == "card" else growth**3, rel=0.05
    )
    tokens = [size["batch_size"] * LENGTH * size["max_steps"] for size in rungs]
    for size, n_tokens, low in zip(rungs, tokens, [None, *tokens], strict=False):
        target = 98_304 * growth ** round(math.log(size["parameters"] / 98_304, growth))
        if size is not rungs[-1] or name != "card":
            assert n_tokens == pytest.approx(TOKENS * target, rel=0.01)
        assert low is None or n_tokens > low
        assert size["batch_size"] == pytest.approx(16 * math.sqrt(n_tokens / 409_600), rel=0.05)
        assert size["warmup"] == pytest.approx(0.05 * size["max_steps"], abs=1)
        assert name == "card" or size.get("every", default_every) == size["max_steps"] / 4
        assert size["n_heads"] % 2 == 0
        assert size["dim"] % (2 * size["n_heads"]) == 0  # RoPE rotates pairs
        assert size["dim"] % 8 == 0


def test_two_cores_ladder_starts_the_card_ladder_and_contains_size_s():
    two_cores, card = load_ladder("two_cores"), load_ladder("card")
    assert list(card.rungs.items())[:4] == list(two_cores.rungs.items())
    assert (card.overrides, card.rates, card.margin) == (
        two_cores.overrides,
        two_cores.rates,
        two_cores.margin,
    )
    size = yaml.safe_load((CONF / "size" / "S.yaml").read_text())
    second = parse_size(two_cores.rungs["S"])
    assert {key: second[key] for key in size["model"]} == size["model"]
    assert (second["batch_size"], LENGTH) == (size["data"]["batch_size"], size["data"]["length"])
    assert second["max_steps"] == size["trainer"]["max_steps"]
