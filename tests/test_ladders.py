"""The rungs of each shipped ladder follow the rules that its file states."""

import math
from itertools import pairwise

import pytest
import yaml

from attnlab.config import CONF
from attnlab.store.declarations import Ladder

GROWTH = {
    "two_cores": 2.5,
    "four_layers": 2.5,
    "card": 2.5,
    "depth": 2.0,
}  # of parameters and of tokens, from rung to rung
LADDERS = sorted(path.stem for path in (CONF / "ladder").glob("*.yaml"))
TOKENS = 25 / 6  # a parameter
LENGTH = 64


def ladder(name):
    return Ladder.model_validate(yaml.safe_load((CONF / "ladder" / f"{name}.yaml").read_text()))


def rung(lines):
    """Of a rung: its keys without their groups, and its parameters without embeddings."""
    own = dict(line.split("=") for line in lines)
    keys = {key.rpartition(".")[2]: value for key, value in own.items()}
    found = {key: int(value) for key, value in keys.items() if key != "precision"}
    return found | {"parameters": 12 * found["n_layers"] * found["dim"] ** 2}


@pytest.mark.parametrize("name", LADDERS)
def test_parameters_tokens_batch_and_warm_up_are_as_its_file_says(name):
    found, usual = ladder(name), yaml.safe_load((CONF / "config.yaml").read_text())["measure"]["every"]
    rungs, growth = [rung(lines) for lines in found.rungs.values()], GROWTH[name]
    for low, high in pairwise(rungs[:-1] if name == "card" else rungs):
        assert 0.88 * growth < high["parameters"] / low["parameters"] < 1.16 * growth
    assert rungs[-1]["parameters"] / rungs[0]["parameters"] == pytest.approx(
        growth**8 * 5 / 3 if name == "card" else growth**3, rel=0.05
    )
    tokens = [one["batch_size"] * LENGTH * one["max_steps"] for one in rungs]
    for one, seen, low in zip(rungs, tokens, [None, *tokens], strict=False):
        target = 98_304 * growth ** round(math.log(one["parameters"] / 98_304, growth))
        if one is not rungs[-1] or name != "card":
            assert seen == pytest.approx(TOKENS * target, rel=0.01)
        assert low is None or seen > low
        assert one["batch_size"] == pytest.approx(16 * math.sqrt(seen / 409_600), rel=0.05)
        assert one["warmup"] == pytest.approx(0.05 * one["max_steps"], abs=1)
        assert name == "card" or one.get("every", usual) == one["max_steps"] / 4
        assert one["n_heads"] % 2 == 0
        assert one["dim"] % (2 * one["n_heads"]) == 0  # rotary positions turn pairs
        assert one["dim"] % 8 == 0


def test_the_ladder_of_two_cores_is_the_foot_of_the_cards_and_its_second_rung_is_size_s():
    few, many = ladder("two_cores"), ladder("card")
    assert list(many.rungs.items())[:4] == list(few.rungs.items())
    assert (many.overrides, many.rates, many.margin) == (few.overrides, few.rates, few.margin)
    size = yaml.safe_load((CONF / "size" / "S.yaml").read_text())
    second = rung(few.rungs["S"])
    assert {key: second[key] for key in size["model"]} == size["model"]
    assert (second["batch_size"], LENGTH) == (size["data"]["batch_size"], size["data"]["length"])
    assert second["max_steps"] == size["trainer"]["max_steps"]
