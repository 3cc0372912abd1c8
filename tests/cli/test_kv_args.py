"""KEY=VALUE arguments: types, defaults, unknown words, and flags at any position."""

import pytest

from attnlab.cli.commands import parse_verb_line
from attnlab.cli.kv_args import (
    KeyArgument,
    parse_boolean,
    parse_integer,
    parse_known_keys,
    parse_number,
    parse_only_keys,
    parse_positive,
    parse_text,
    split_words,
)
from attnlab.errors import InvalidConfig

KEYS = (
    KeyArgument("steps", "", parse_integer, 3),
    KeyArgument("rate", "", parse_number),
    KeyArgument("name", "", parse_text),
    KeyArgument("fast", "", parse_boolean),
)


def test_values_are_typed_and_defaults_fill_in():
    assert parse_only_keys("go", ["rate=1e-3", "name=a=b", "fast=True"], KEYS) == {
        "steps": 3, "rate": 0.001, "name": "a=b", "fast": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parse_value", "value", "requirement"),
    [
        (parse_integer, "1.5", "must be an integer"),
        (parse_positive, "0", "must be an integer of at least 1"),
        (parse_positive, "-1", "must be an integer of at least 1"),
        (parse_number, "much", "must be a number"),
        (parse_boolean, "yes", "must be true or false"),
        (parse_text, "", "must not be empty"),
    ],
)
def test_value_of_a_wrong_type_is_rejected_with_its_requirement(parse_value, value, requirement):
    with pytest.raises(InvalidConfig, match=f"^key={value}: {requirement}$"):
        parse_only_keys("go", [f"key={value}"], [KeyArgument("key", "", parse_value)])


@pytest.mark.parametrize("word", ["stops=2", "steps", "+steps=2"])
def test_unknown_word_is_rejected_or_returned(word):
    with pytest.raises(InvalidConfig, match=r"^go: unknown word '.*' \(nearest: steps\)"):
        parse_only_keys("go", [word], KEYS)
    assert parse_known_keys([word, "rate=2"], KEYS) == ({"steps": 3, "rate": 2.0}, [word])


def test_words_are_split_by_their_equals_sign():
    assert split_words(["a", "b=c", "d=", "e"]) == (["a", "e"], ["b=c", "d="])


@pytest.mark.parametrize(
    "line",
    [
        ["memory", "model.dim=64", "rounds=2", "--json"],
        ["--json", "rounds=2", "memory", "model.dim=64"],
        ["rounds=2", "memory", "--json", "model.dim=64"],
    ],
)
def test_flag_is_accepted_at_any_position(line):
    options = parse_verb_line("bench", line)
    assert (options.json, options.words, options.key_values) == (
        True,
        ["memory", "model.dim=64"],
        {"rounds": 2},
    )
