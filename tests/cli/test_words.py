"""The words of a verb: types, defaults, what is unknown, and flags at any place among them."""

import shlex

import pytest

from attnlab.cli.commands import VERBS, parse
from attnlab.cli.words import Key, flag, known, number, positive, read, split, text, whole
from attnlab.errors import Refused

KEYS = (Key("steps", "", whole, 3), Key("rate", "", number), Key("name", "", text), Key("fast", "", flag))


def test_values_have_their_types_and_what_is_left_out_its_default():
    assert read("go", ["rate=1e-3", "name=a=b", "fast=True"], KEYS) == {
        "steps": 3, "rate": 0.001, "name": "a=b", "fast": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "must"),
    [
        (whole, "1.5", "it must be a whole number"),
        (positive, "0", "it must be a whole number of at least 1"),
        (positive, "-1", "it must be a whole number of at least 1"),
        (number, "much", "it must be a number"),
        (flag, "yes", "it must be true or false"),
        (text, "", "it must not be empty"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_word(kind, value, must):
    with pytest.raises(Refused, match=f"^key={value}: {must}$"):
        read("go", [f"key={value}"], [Key("key", "", kind)])


@pytest.mark.parametrize("word", ["stops=2", "steps", "+steps=2"])
def test_a_word_that_is_no_key_is_refused_or_left_to_who_asks_for_the_others(word):
    with pytest.raises(Refused, match=r"^go does not know '.*' \(nearest: steps\)"):
        read("go", [word], KEYS)
    assert known([word, "rate=2"], KEYS) == ({"steps": 3, "rate": 2.0}, [word])


def test_words_are_told_apart_by_their_equals_sign():
    assert split(["a", "b=c", "d=", "e"]) == (["a", "e"], ["b=c", "d="])


@pytest.mark.parametrize(
    "line",
    [
        ["memory", "model.dim=64", "rounds=2", "--json"],
        ["--json", "rounds=2", "memory", "model.dim=64"],
        ["rounds=2", "memory", "--json", "model.dim=64"],
    ],
)
def test_a_flag_may_stand_anywhere_among_the_words(line):
    options = parse("bench", line)
    assert (options.json, options.words, options.given) == (True, ["memory", "model.dim=64"], {"rounds": 2})


def test_no_example_of_a_help_is_refused():
    for name, verb in VERBS.items():
        for example in verb.examples:
            parse(name, shlex.split(example.partition(" > ")[0]))
