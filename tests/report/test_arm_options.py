"""The line under an arm: the options that distinguish it, short."""

import pytest
from rendering import REFERENCES

from attnlab.report.schema import load_report
from attnlab.report.tables.arm_options import MAX_LENGTH, cut_options, describe_arm_options


def describe(name: str) -> dict[str, str]:
    return describe_arm_options(load_report(REFERENCES / name / "report.json"))


def test_arms_with_the_same_options_are_told_apart_by_their_configs() -> None:
    assert describe("gqa_vs_mha") == {
        "mha": "heads=mha",
        "gqa": "heads=gqa ffn_width=288",
        "mqa": "heads=mqa",
        "gqa_alone": "heads=gqa ffn_width=256",
    }


def test_options_that_all_arms_share_are_left_out() -> None:
    assert describe("normalizers")["sigmoid"] == "normalizer=sigmoid", "all use kernel=eager"


def test_interpolations_become_numbers() -> None:
    assert describe("mla_vs_gqa")["mla"] == "heads=mla rank=24"
    assert describe("aa_null")["fresh"].startswith("model.seed=1009\N{MULTIPLICATION SIGN}seed data.seed=")


def test_measurements_appear_only_where_they_distinguish_arms() -> None:
    lossy = describe("lossy_caches")
    assert lossy["int8"] == "parent=trained make_cache=int8"
    assert lossy["stated"] == "measurement=Theory"
    assert lossy["trained"] == ""
    assert len(set(lossy.values())) == len(lossy)
    assert describe("cached_vs_uncached")["wrong_offset"] == "decode=dynamic offset=-1"
    assert describe("qk_variance")["scaled"] == "score=scaled"


@pytest.mark.parametrize("name", ["gqa_uptraining", "kv_cache_bytes", "rope_interpolation"])
def test_no_braces_and_no_two_arms_with_the_same_line(name: str) -> None:
    options = describe(name)
    assert not [text for text in options.values() if "{" in text or "_target_" in text]
    assert len(set(options.values())) == len(options)


def test_long_lines_are_cut_after_an_option() -> None:
    text = " ".join(f"option_{i}={i}" for i in range(20))
    cut = cut_options(text)
    assert len(cut) <= MAX_LENGTH + 2
    assert text.startswith(cut.removesuffix(" …"))
    assert text[len(cut) - 2] == " "
    assert cut_options("heads=gqa") == "heads=gqa"
