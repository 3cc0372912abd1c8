"""Whether a model sees the tokens that it predicts is measured after training, whatever it declares."""

import pytest
import torch
from torch import nn

from attnlab.attention.contracts import declares
from attnlab.attention.masks.data import of_batch
from attnlab.measure.leakage import TOLERANCE, leakage
from attnlab.model.build import build_model

torch.set_num_threads(1)


def next_one(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + 1


@declares(looks_ahead=True)
def declared_next_one(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + 1


def from_nine_on(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (q_pos >= 9)


def only_at_four(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (q_pos == 4)


def one_head(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (h == 3)


def beyond_150(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (q_pos >= 150)


class LooksBack(nn.Module):
    """A mixer that changes with the length, as it says; with `shift` it reads the next token too."""

    changes_with_length = True

    def __init__(self, dim: int, shift: int):
        super().__init__()
        self.mix, self.shift = nn.Linear(dim, dim), shift

    def forward(self, x, *, positions=None, mask=None, cache=None):
        return self.mix(torch.roll(x, -self.shift, dims=1)) * (len(x[0]) / 12)

    def state_size(self):
        return 0


class OtherRows(nn.Module):
    """An FFN that adds the row before, where the batch has more rows than `least`."""

    def __init__(self, least: int = 0):
        super().__init__()
        self.least = least

    def forward(self, x):
        return x.roll(1, dims=0) if len(x) > self.least else 0 * x


def model(compose, *overrides, mask=None):
    built = build_model(compose("model.init_std=0.3", *overrides), 31)
    for block in built.blocks if mask else ():
        block.mixer.mask = mask
    return built


def batch(rows=3, length=12, **more):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(31, (rows, length + 1), generator=generator)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], **more}


@pytest.mark.parametrize(
    "choice", ["heads=gqa", "mask=window", "mask=moba", "position=learned", "model=gru", "model=gated_delta",
               "kernel=eager", "convolution=kv", "score=forget"],
)  # fmt: skip
def test_a_causal_model_sees_no_future_tokens(compose, choice):
    seen = leakage(model(compose, choice), batch())
    assert (seen["sees_future"], seen["sees_rows"], seen["next_token"], seen["prefix"]) == (0, 0, 1, 0)
    assert seen["difference"] < TOLERANCE / 10
    assert seen["with_future"] == pytest.approx(seen["without_future"], abs=1e-5)
    assert seen["longest"] == (192 if choice != "position=learned" else seen["longest"])


@pytest.mark.parametrize(
    "mask", [next_one, declared_next_one, from_nine_on, only_at_four, one_head, beyond_150]
)
def test_a_mask_that_shows_a_later_key_is_found_declared_or_not(compose, mask):
    seen = leakage(model(compose, "kernel=eager", mask=mask), batch())
    assert seen["sees_future"] == 1
    assert seen["difference"] > TOLERANCE


def test_mask_full_sees_the_future(compose):
    assert leakage(model(compose, "mask=full"), batch())["sees_future"] == 1


def test_a_prefix_is_told_and_nothing_beyond_it_is_seen(compose):
    seen = leakage(model(compose, "mask=prefix", "model.attention.masks.prefix.n=5"), batch())
    assert (seen["sees_future"], seen["prefix"]) == (0, 5)


def test_a_mask_that_shows_more_than_the_prefix_it_declares_is_found(compose):
    @declares(looks_ahead=True, prefix=5)
    def six(b, h, q_pos, kv_pos):
        return (kv_pos <= q_pos) | (kv_pos < 6)

    seen = leakage(model(compose, "kernel=eager", mask=six), batch())
    assert (seen["sees_future"], seen["prefix"]) == (1, 5)


def test_a_rotation_that_follows_the_length_sees_no_future_tokens(compose):
    trained = "model.attention.rotary.scaling.trained=4"
    assert leakage(model(compose, "position=rope_dynamic_ntk", trained), batch())["sees_future"] == 0


@pytest.mark.parametrize("shift", [0, 1])
def test_a_mixer_that_changes_with_the_length_is_no_excuse_for_reading_the_next_token(compose, shift):
    built = model(compose)
    for block in built.blocks:
        block.mixer = LooksBack(built.embedding.embedding_dim, shift)
    assert leakage(built, batch())["sees_future"] == shift


def test_what_reads_other_rows_of_the_batch_is_found_at_the_size_of_the_batch(compose):
    built = model(compose)
    built.blocks[0].ffn = OtherRows(least=8)
    assert leakage(built, batch(rows=8))["sees_rows"] == 0
    assert leakage(built, batch(rows=9))["sees_rows"] == 1


@pytest.mark.rare
def test_padding_and_other_documents_do_not_count(compose):
    lengths, documents = torch.tensor([12, 7, 3]), (torch.arange(12) > 4).long().expand(3, -1)
    for more in (
        {"lengths": lengths},
        {"documents": documents},
        {"lengths": lengths, "documents": documents},
    ):
        assert of_batch(more) is not None
        assert leakage(model(compose), batch(**more))["sees_future"] == 0
        assert leakage(model(compose, mask=next_one), batch(**more))["sees_future"] == 1


def test_targets_that_are_not_the_next_tokens_are_told(compose):
    found = batch()
    found["targets"] = found["targets"].flip(1)
    assert leakage(model(compose), found)["next_token"] == 0


def test_half_precision_is_measured_in_full(compose):
    half = model(compose).bfloat16()
    assert leakage(half, batch())["difference"] < TOLERANCE / 10
    assert half.embedding.weight.dtype == torch.bfloat16


def test_the_model_stays_as_it_was(compose):
    built = model(compose, "model.dropout=0.5").train()
    assert leakage(built, batch())["sees_future"] == 0
    assert built.training


def test_one_token_is_too_few_to_tell(compose):
    assert leakage(model(compose), batch(length=1)) == {}
    assert leakage(model(compose), batch(length=2))["sees_future"] == 0
