"""What a run will take is known before it starts: epochs, and memory from shapes."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch

from attnlab.attention.kernels.flex import Flex
from attnlab.measure import size
from attnlab.model.build import build_model, make
from attnlab.training import preflight
from attnlab.training.estimates import epochs, memory
from attnlab.training.estimates.fake_tensors import fake_tensors, replace_parameters
from attnlab.training.module import LanguageModel
from attnlab.training.preflight import check
from attnlab.training.refusals import sizes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["trainer.max_steps=100"], 100 * 4 * 16 / 3096),  # nine tenths of 40 x 86 characters
        (["trainer.max_steps=100", "trainer.accumulate_grad_batches=3"], 3 * 100 * 4 * 16 / 3096),
        (["measurement={_target_: attnlab.measure.studies.cache_bytes.CacheBytes}"], None),
    ],
)
def test_epochs_are_the_tokens_trained_on_over_those_of_the_text(compose, line, expected):
    config = compose(*line)
    found = epochs.epochs(config, make(config["data"]).task)
    assert found == (None if expected is None else pytest.approx(expected, rel=1e-3))


def test_what_is_drawn_is_never_read_twice(compose):
    data = SimpleNamespace(task=SimpleNamespace(train_tokens=0), max_epochs=0.1)
    assert epochs.epochs(compose(), data.task) is None
    epochs.check(compose(), data)


def test_padding_is_no_reading(compose, tmp_path):
    """Ten names of one to ten letters: nine to train on; a step of three rows draws three of them."""
    (tmp_path / "names.txt").write_text("\n".join("a" * n for n in range(1, 11)))
    config = compose(
        "data=names", f"data.path={tmp_path / 'names.txt'}", "data.batch_size=3", "trainer.max_steps=6"
    )
    assert epochs.epochs(config, make(config["data"]).task) == 2.0


@pytest.mark.parametrize(("line", "refused"), [
    (["data.max_epochs=1.5", "trainer.max_steps=100"], True),
    (["data.max_epochs=1.5", "trainer.max_steps=72"], False),
    (["data.max_epochs=3", "trainer.max_steps=100"], False),
    (["trainer.max_steps=100"], False),
])  # fmt: skip
def test_a_run_that_reads_its_text_more_often_than_it_may_is_refused(compose, line, refused):
    config = compose(*line)
    data = make(config["data"])
    if not refused:
        assert epochs.check(config, data) == epochs.epochs(config, data.task)
        return
    with pytest.raises(ValueError, match=(
        r"^data.max_epochs=1.5: trainer.max_steps=100 reads the text 2.07 times, 1.38 times as often as "
        r"that; it has 3,096 training tokens \(char\). .* at most trainer.max_steps=72, or data.max_epochs=3$"
    )):  # fmt: skip
        check(config)


def test_the_large_sizes_read_their_text_about_four_times_at_most(compose):
    assert [compose(f"size={size}")["data"]["max_epochs"] for size in ("debug", "S", "M", "L")] == [
        None,
        None,
        4.5,
        4,
    ]


def test_fake_tensors_count_as_real_ones_with_fused_attention_and_autocast():
    """What the meta device would not show; fails where torch changes its fake tensors."""
    with torch.device("meta"):
        tied = torch.nn.Linear(7, 7), torch.nn.Linear(7, 7)
    tied[1].weight = tied[0].weight
    model = torch.nn.Sequential(*tied)
    q = torch.zeros(1, 2, 64, 8)
    saved = size.saved_for_backward(lambda: attend(q.clone().requires_grad_()), model)
    with fake_tensors():
        replace_parameters(model)
        assert model[0].weight is model[1].weight
        assert not model[0].weight.is_meta
        with memory.Live(model) as live:
            y = attend(torch.zeros(1, 2, 64, 8).requires_grad_())
        with torch.autocast("cpu", torch.bfloat16):
            assert model(torch.zeros(3, 7)).dtype == torch.bfloat16
    assert y.shape == q.shape
    assert live.now == saved


def attend(q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_storages_are_counted_once_for_as_long_as_they_live():
    model = torch.nn.Linear(3, 5)
    with memory.Live(model) as live:
        x = torch.zeros(7, 3)
        peak, y = live.highest(lambda: model(x).exp().view(5, 7))
        assert (live.now, peak) == (4 * (21 + 35), 4 * (21 + 2 * 35)), "the product is gone, its exp is there"
        del y
        assert live.now == 4 * 21


def on_meta(config, data):
    with torch.device("meta"):
        return make(config["optim"], model=build_model(config, data.task.vocab_size))


def moments(config, spread=1.0):
    data = make(config["data"])
    return memory._moments(config, on_meta(config, data), data, spread)


def peak(config, device):
    data = make(config["data"])
    return memory.peak(config, on_meta(config, data), data, device)


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["kernel=eager", "mask=window", "heads=mla"],
        pytest.param(["model=llama"], marks=pytest.mark.rare),
        pytest.param(["model=lstm"], marks=pytest.mark.rare),
        pytest.param(["model=gru"], marks=pytest.mark.rare),
    ],
)
def test_a_forward_pass_holds_what_it_saves_for_the_backward_pass_and_little_more(compose, line):
    config = compose("data.batch_size=16", *line)
    data = make(config["data"])
    module = make(config["optim"], model=build_model(config, data.task.vocab_size))
    batch = data.task.train_batch(0, 0, 16)
    saved = size.saved_for_backward(lambda: module.losses(batch).sum(), module.model)
    weights = 4 * 4 * sum(parameter.numel() for parameter in module.parameters())
    forward, backward, _, validation = (found - weights for found in moments(config))
    assert 0.7 * saved < forward < 2 * saved
    assert backward > 0
    assert validation > 0


def test_what_a_process_holds_by_reading_a_text_is_none_of_a_runs(compose, monkeypatch):
    order = []
    monkeypatch.setattr(memory, "imported", cache(memory.imported.__wrapped__))
    monkeypatch.setattr(memory, "peak_memory", lambda device: order.append("memory") or {"peak_rss_bytes": 1})
    monkeypatch.setattr(
        preflight, "make", lambda *given, **more: order.append("made") or make(*given, **more)
    )
    assert check(compose())["memory_bytes"] > 1
    assert order[:2] == ["memory", "made"]
    assert order.count("memory") == 1


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize(("mode", "more"), [("offline", memory.WANDB), ("disabled", 0)])
def test_a_run_with_wandb_takes_more(compose, monkeypatch, mode, more):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = compose("logger=wandb", f"logger.mode={mode}")
    plain = compose("logger=none")
    assert peak(config, "cpu") - peak(plain, "cpu") == more
    assert peak(config, "cuda") == peak(plain, "cuda")


def test_uniform_layers_cost_the_same_so_few_are_enough(compose):
    config = compose("model.n_layers=7")
    data = make(config["data"])
    module = on_meta(config, data)
    like = data.task.train_batch(0, 0, 1)
    with fake_tensors(), memory._own_cells():
        replace_parameters(module)
        whole = memory._moments_of_a_step(config, module, data.task, like, 1.0)
    assert max(moments(config)) == max(whole)


def test_weights_have_gradients_and_moments_and_a_second_device_a_copy_of_them(compose):
    line = ["model.dim=64", "data.batch_size=2", "data.length=8", "data.val_batch_size=1"]
    one, two = compose(*line), compose(*line, "trainer.devices=2", "data.batch_size=4")
    weights = 4 * check(one)["parameters"]
    assert 4 * weights < max(moments(one)) < 4.5 * weights
    assert max(moments(two)) - max(moments(one)) == weights


def test_what_the_optimiser_keeps_is_counted_as_it_keeps_it(compose, monkeypatch):
    config = compose("model.dim=64", "data.batch_size=2", "data.val_batch_size=1")
    weights = 4 * check(config)["parameters"]
    adam = moments(config)
    sgd = lambda self, _: (torch.optim.SGD(self.parameters(), lr=0.1), None)  # noqa: E731
    monkeypatch.setattr(LanguageModel, "optimizer", sgd)
    assert adam[0] - moments(config)[0] == pytest.approx(2 * weights, rel=0.01)


def test_a_kernel_that_cannot_compute_here_counts_as_a_fused_one(compose):
    config = compose()
    as_flex = compose("kernel=flex")
    assert isinstance(build_model(as_flex, 9).blocks[0].mixer.kernel, Flex)
    assert moments(as_flex)[0] == pytest.approx(moments(config)[0], rel=0.05)


def test_a_part_that_looks_at_its_numbers_leaves_the_memory_unknown(compose, monkeypatch):
    monkeypatch.setattr(memory, "cross_entropy", lambda logits, _: logits * logits.max().item())
    assert peak(compose(), "cpu") is None


@pytest.mark.parametrize(("card", "gib"), [("NVIDIA H200", 139.8), ("NVIDIA H100 80GB HBM3", 78.4),
                                           ("NVIDIA A100-SXM4-40GB", 39.2), ("a card", None)])  # fmt: skip
def test_the_memory_of_a_card_is_known_by_its_name(card, gib):
    assert sizes.room_of({"sweep": {"device": card}}, "cpu") == (None if gib is None else int(gib * 2**30))


def test_what_cannot_fit_the_card_that_is_planned_for_is_refused(compose):
    config = compose("sweep.device='Tesla T4'", "model.dim=8192", "model.n_layers=3")
    with pytest.raises(ValueError, match=r"there are 14.6 GB \(Tesla T4\)"):
        check(config)
    assert check(compose("sweep.device='Tesla T4'"))["room_bytes"] == int(14.6 * 2**30)
