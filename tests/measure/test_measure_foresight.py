"""Who sees what it is to predict is found out after training, whatever it declares."""

import pytest
import torch

from attnlab.attention.masks.data import of_batch
from attnlab.measure.foresight import TOLERANCE, foresight
from attnlab.model.build import build_model

torch.set_num_threads(1)


def next_one(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + 1


def from_nine_on(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (q_pos >= 9)


def one_head(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (h == 3)


def model(compose, *overrides, mask=None):
    built = build_model(compose("model.init_std=0.3", *overrides), 31)
    for block in built.blocks if mask else ():
        block.mixer.mask = mask
    return built


def batch(rows=3, length=12, **more):
    generator = torch.Generator().manual_seed(0)
    return {"tokens": torch.randint(31, (rows, length), generator=generator), **more}


@pytest.mark.parametrize(
    "choice", ["heads=gqa", "mask=window", "position=learned", "model=gru", "kernel=eager"]
)
def test_who_sees_the_past_alone_has_the_same_loss_twice(compose, choice):
    seen = foresight(model(compose, choice), batch())
    assert seen["flagged"] == seen["declared"] == 0
    assert seen["difference"] < TOLERANCE / 30
    assert seen["full"] == pytest.approx(seen["prefix"], abs=1e-5)


@pytest.mark.parametrize("mask", [next_one, from_nine_on, one_head])
def test_a_mask_that_looks_ahead_without_a_word_is_flagged(compose, mask):
    seen = foresight(model(compose, "kernel=eager", mask=mask), batch())
    assert seen["flagged"] == 1
    assert seen["difference"] > TOLERANCE


@pytest.mark.parametrize("mask", ["full", "prefix"])
def test_one_that_says_so_is_told_and_not_flagged(compose, mask):
    seen = foresight(model(compose, f"mask={mask}"), batch())
    assert (seen["flagged"], seen["declared"]) == (0, 1)


def test_a_rotation_that_follows_the_length_is_excused(compose):
    trained = "model.attention.rotary.scaling.trained=4"
    seen = foresight(model(compose, "position=rope_dynamic_ntk", trained), batch())
    assert (seen["flagged"], seen["declared"]) == (0, 0)
    assert seen["difference"] > TOLERANCE


def test_padding_and_other_documents_do_not_count(compose):
    lengths, documents = torch.tensor([12, 7, 3]), (torch.arange(12) > 4).long().expand(3, -1)
    for more in (
        {"lengths": lengths},
        {"documents": documents},
        {"lengths": lengths, "documents": documents},
    ):
        assert of_batch(more) is not None
        assert foresight(model(compose), batch(**more))["flagged"] == 0
        assert foresight(model(compose, mask=next_one), batch(**more))["flagged"] == 1


def test_half_precision_is_measured_in_full(compose):
    half = model(compose).bfloat16()
    assert foresight(half, batch())["difference"] < TOLERANCE / 30
    assert half.embedding.weight.dtype == torch.bfloat16


def test_the_model_stays_as_it_was(compose):
    built = model(compose, "model.dropout=0.5").train()
    assert foresight(built, batch())["flagged"] == 0
    assert built.training


def test_two_tokens_are_too_few_to_tell(compose):
    assert foresight(model(compose), batch(length=1)) == {}
    assert foresight(model(compose), batch(length=2))["flagged"] == 0
