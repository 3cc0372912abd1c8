"""Whether a model sees the tokens that it predicts is measured, regardless of its declarations."""

import pytest
import torch
from torch import nn

from attnlab.attention.contracts import declare_capabilities
from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.measure.leakage import TOLERANCE, measure_leakage
from attnlab.model.build import build_model

torch.set_num_threads(1)


def next_one(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + 1


@declare_capabilities(sees_future=True)
def declared_next_one(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + 1


def from_nine_on(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + (q_idx >= 9)


def only_at_four(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + (q_idx == 4)


def one_head(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + (h == 3)


def beyond_150(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + (q_idx >= 150)


class RollMixer(nn.Module):
    """A mixer that changes with the length, as declared; with `shift` it also reads the next token."""

    changes_with_length = True

    def __init__(self, dim: int, shift: int):
        super().__init__()
        self.mix, self.shift = nn.Linear(dim, dim), shift

    def forward(self, x, *, positions=None, mask=None, cache=None):
        return self.mix(torch.roll(x, -self.shift, dims=1)) * (len(x[0]) / 12)

    def state_size(self):
        return 0


class OtherRows(nn.Module):
    """An FFN that adds the previous row in batches of more than `max_independent_rows` rows."""

    def __init__(self, max_independent_rows: int = 0):
        super().__init__()
        self.max_independent_rows = max_independent_rows

    def forward(self, x):
        return x.roll(1, dims=0) if len(x) > self.max_independent_rows else 0 * x


def build_test_model(compose, *overrides, mask=None):
    model = build_model(compose("model.init_std=0.3", *overrides), 31)
    for block in model.blocks if mask else ():
        block.mixer.mask = mask
    return model


def make_batch(rows=3, length=12, **extra_keys):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(31, (rows, length + 1), generator=generator)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], **extra_keys}


@pytest.mark.parametrize(
    "choice", ["heads=gqa", "mask=window", "mask=moba", "position=learned", "model=gru", "model=gated_delta",
               "kernel=eager", "convolution=kv", "score=forget"],
)  # fmt: skip
def test_a_causal_model_sees_no_future_tokens(compose, choice):
    leakage = measure_leakage(build_test_model(compose, choice), make_batch())
    assert (leakage["sees_future"], leakage["sees_rows"], leakage["next_token"], leakage["prefix"]) == (
        0,
        0,
        1,
        0,
    )
    assert leakage["difference"] < TOLERANCE / 10
    assert leakage["with_future"] == pytest.approx(leakage["without_future"], abs=1e-5)
    assert leakage["longest"] == (192 if choice != "position=learned" else leakage["longest"])


@pytest.mark.parametrize(
    "mask", [next_one, declared_next_one, from_nine_on, only_at_four, one_head, beyond_150]
)
def test_a_mask_that_shows_a_later_key_is_detected(compose, mask):
    leakage = measure_leakage(build_test_model(compose, "kernel=eager", mask=mask), make_batch())
    assert leakage["sees_future"] == 1
    assert leakage["difference"] > TOLERANCE


def test_a_full_mask_sees_the_future(compose):
    assert measure_leakage(build_test_model(compose, "mask=full"), make_batch())["sees_future"] == 1


def test_a_declared_prefix_is_reported_and_does_not_count(compose):
    leakage = measure_leakage(
        build_test_model(compose, "mask=prefix", "model.attention.masks.prefix.n=5"), make_batch()
    )
    assert (leakage["sees_future"], leakage["prefix"]) == (0, 5)


def test_a_mask_that_shows_more_than_its_declared_prefix_is_detected(compose):
    @declare_capabilities(sees_future=True, prefix=5)
    def six(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) | (kv_idx < 6)

    leakage = measure_leakage(build_test_model(compose, "kernel=eager", mask=six), make_batch())
    assert (leakage["sees_future"], leakage["prefix"]) == (1, 5)


def test_a_length_dependent_rotation_sees_no_future_tokens(compose):
    trained = "model.attention.rotary.scaling.trained=4"
    assert (
        measure_leakage(build_test_model(compose, "position=rope_dynamic_ntk", trained), make_batch())[
            "sees_future"
        ]
        == 0
    )


@pytest.mark.parametrize("shift", [0, 1])
def test_a_length_dependent_mixer_that_reads_the_next_token_is_detected(compose, shift):
    model = build_test_model(compose)
    for block in model.blocks:
        block.mixer = RollMixer(model.embedding.embedding_dim, shift)
    assert measure_leakage(model, make_batch())["sees_future"] == shift


def test_dependence_on_other_rows_is_detected_at_the_batch_size(compose):
    model = build_test_model(compose)
    model.blocks[0].ffn = OtherRows(max_independent_rows=8)
    assert measure_leakage(model, make_batch(rows=8))["sees_rows"] == 0
    assert measure_leakage(model, make_batch(rows=9))["sees_rows"] == 1


@pytest.mark.rare
def test_leakage_is_detected_with_padding_and_packed_documents(compose):
    lengths, documents = torch.tensor([12, 7, 3]), (torch.arange(12) > 4).long().expand(3, -1)
    for extra_keys in (
        {"lengths": lengths},
        {"documents": documents},
        {"lengths": lengths, "documents": documents},
    ):
        assert make_batch_mask(extra_keys) is not None
        assert measure_leakage(build_test_model(compose), make_batch(**extra_keys))["sees_future"] == 0
        assert (
            measure_leakage(build_test_model(compose, mask=next_one), make_batch(**extra_keys))["sees_future"]
            == 1
        )


def test_targets_other_than_the_next_tokens_are_reported(compose):
    batch = make_batch()
    batch["targets"] = batch["targets"].flip(1)
    assert measure_leakage(build_test_model(compose), batch)["next_token"] == 0


def test_half_precision_models_are_measured_in_float32(compose):
    model = build_test_model(compose).bfloat16()
    assert measure_leakage(model, make_batch())["difference"] < TOLERANCE / 10
    assert model.embedding.weight.dtype == torch.bfloat16


def test_the_mode_of_the_model_is_restored(compose):
    model = build_test_model(compose, "model.dropout=0.5").train()
    assert measure_leakage(model, make_batch())["sees_future"] == 0
    assert model.training


def test_texts_of_one_token_are_not_measured(compose):
    assert measure_leakage(build_test_model(compose), make_batch(length=1)) == {}
    assert measure_leakage(build_test_model(compose), make_batch(length=2))["sees_future"] == 0
