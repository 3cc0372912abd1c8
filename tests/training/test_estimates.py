"""Estimates before training: epochs, and memory from shapes."""

import math
from functools import cache
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from attnlab.attention.kernels.flex import Flex
from attnlab.data.induction import Induction
from attnlab.data.needle import Needle
from attnlab.measure import resources
from attnlab.model.build import build_model, instantiate_config
from attnlab.training import preflight, trainer_settings
from attnlab.training.estimates import epoch_counts, guessing_loss, training_memory
from attnlab.training.estimates.fake_tensors import enable_fake_tensors, replace_parameters
from attnlab.training.language_model import LanguageModel
from attnlab.training.preflight import check
from attnlab.training.validation import memory_limits


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["trainer.max_steps=100"], 100 * 4 * 16 / 3096),  # nine tenths of 40 x 86 characters
        (["trainer.max_steps=100", "trainer.accumulate_grad_batches=3"], 3 * 100 * 4 * 16 / 3096),
        (["measurement={_target_: attnlab.measure.studies.cache_bytes.CacheBytes}"], None),
    ],
)
def test_epochs_are_training_tokens_per_corpus_token(compose, line, expected):
    config = compose(*line)
    epochs = epoch_counts.count_epochs(config, instantiate_config(config["data"]).task)
    assert epochs == (None if expected is None else pytest.approx(expected, rel=1e-3))


def test_generated_data_have_no_epochs(compose):
    data = SimpleNamespace(task=SimpleNamespace(train_tokens=0), max_epochs=0.1)
    assert epoch_counts.count_epochs(compose(), data.task) is None
    epoch_counts.validate_epochs(compose(), data)


def guess_by_loops(batches, vocab_size, smoothing):
    """Mean loss of the guess (c + s) g on all scored targets; infinite s: the frequency g alone."""
    rows = [
        (row, aim) for batch in batches for row, aim in zip(batch["tokens"], batch["targets"], strict=True)
    ]
    scored = [
        (row[: t + 1].tolist(), int(aim[t])) for row, aim in rows for t in range(len(aim)) if aim[t] >= 0
    ]
    aims = [aim for _, aim in scored]
    frequency = [aims.count(v) / len(aims) for v in range(vocab_size)]
    total = 0.0
    for seen, aim in scored:
        weights = [
            frequency[v] * (1 if math.isinf(smoothing) else seen.count(v) + smoothing)
            for v in range(vocab_size)
        ]
        total -= math.log(weights[aim] / sum(weights))
    return total / len(scored)


@pytest.mark.parametrize(
    ("task", "is_solved_without_order"),
    [(Induction(16, 8, 3, 6, 8), False), (Needle(16, 9, [2, 4, 8], 0, 8), True)],
)
def test_guess_ignores_the_order_of_tokens(task, is_solved_without_order):
    batches, size = task.val_batches(3), task.vocab_size
    by_frequency = guess_by_loops(batches, size, math.inf)
    by_row = min(guess_by_loops(batches, size, smoothing) for smoothing in guessing_loss.SMOOTHINGS)
    assert (by_row < 0.1 * by_frequency) == is_solved_without_order
    expected = by_frequency if is_solved_without_order else min(by_row, by_frequency)
    assert guessing_loss.compute_guessing_loss(batches, size) == pytest.approx(expected)


def test_generated_data_are_described_with_the_loss_of_a_guess(compose):
    config = compose()
    config["data"] = {
        "_target_": config["data"]["_target_"],
        "task": {"_target_": "attnlab.data.induction.Induction", "_partial_": True},
        "length": 16, "vocabulary": 8, "shortest": 3, "longest": 6, "val_windows": 8, "val_batch_size": 8,
        "batch_size": 4, "seed": 0,
    }  # fmt: skip
    assert check(config)["data"]["guessing_loss"] < math.log(8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports torch.jit
def test_compilation_needs_a_compiler(compose, monkeypatch, tmp_path):
    check(compose("optim.compile=true"))
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    check(compose())
    with pytest.raises(ValueError, match=r"optim\.compile=true needs a C\+\+ compiler, and .*nowhere is not"):
        check(compose("optim.compile=true"))


def test_text_has_no_guessing_loss(compose):
    assert "guessing_loss" not in check(compose())["data"]


def test_padding_does_not_count_as_epochs(compose, tmp_path):
    """Ten names of one to ten letters: nine for training; a step of three rows samples three of them."""
    (tmp_path / "names.txt").write_text("\n".join("a" * n for n in range(1, 11)))
    config = compose(
        "data=names", f"data.path={tmp_path / 'names.txt'}", "data.batch_size=3", "trainer.max_steps=6"
    )
    assert epoch_counts.count_epochs(config, instantiate_config(config["data"]).task) == 2.0


@pytest.mark.parametrize(("line", "rejected"), [
    (["data.max_epochs=1.5", "trainer.max_steps=100"], True),
    (["data.max_epochs=1.5", "trainer.max_steps=72"], False),
    (["data.max_epochs=3", "trainer.max_steps=100"], False),
    (["trainer.max_steps=100"], False),
])  # fmt: skip
def test_a_run_with_too_many_epochs_is_rejected(compose, line, rejected):
    config = compose(*line)
    data = instantiate_config(config["data"])
    if not rejected:
        assert epoch_counts.validate_epochs(config, data) == epoch_counts.count_epochs(config, data.task)
        return
    with pytest.raises(ValueError, match=(
        r"^data.max_epochs=1.5: trainer.max_steps=100 reads the text 2.07 times, 1.38 times that limit; "
        r"it has 3,096 training tokens \(char\). .* at most trainer.max_steps=72, or data.max_epochs=3$"
    )):  # fmt: skip
        check(config)


def test_large_sizes_are_limited_to_about_four_epochs(compose):
    assert [compose(f"size={size}")["data"]["max_epochs"] for size in ("debug", "S", "M", "L")] == [
        None,
        None,
        4.5,
        4,
    ]


def test_fake_tensors_count_as_real_ones_with_fused_attention_and_autocast():
    """Counts that the meta device would miss; fails if torch changes its fake tensors."""
    with torch.device("meta"):
        tied = torch.nn.Linear(7, 7), torch.nn.Linear(7, 7)
    tied[1].weight = tied[0].weight
    model = torch.nn.Sequential(*tied)
    q = torch.zeros(1, 2, 64, 8)
    saved = resources.count_saved_bytes(lambda: attend(q.clone().requires_grad_()), model)
    with enable_fake_tensors():
        replace_parameters(model)
        assert model[0].weight is model[1].weight
        assert not model[0].weight.is_meta
        with training_memory.LiveMemoryCounter(model) as live:
            y = attend(torch.zeros(1, 2, 64, 8).requires_grad_())
        with torch.autocast("cpu", torch.bfloat16):
            assert model(torch.zeros(3, 7)).dtype == torch.bfloat16
    assert y.shape == q.shape
    assert live.current_bytes == saved


def attend(q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_storages_are_counted_once_for_as_long_as_they_live():
    model = torch.nn.Linear(3, 5)
    with training_memory.LiveMemoryCounter(model) as live:
        x = torch.zeros(7, 3)
        estimate_peak, y = live.measure_peak(lambda: model(x).exp().view(5, 7))
        assert (live.current_bytes, estimate_peak) == (4 * (21 + 35), 4 * (21 + 2 * 35)), (
            "the product is gone, its exp is there"
        )
        del y
        assert live.current_bytes == 4 * 21


def build_on_meta(config, data):
    with torch.device("meta"):
        return instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))


def estimate_phases(config, spread=1.0):
    data = instantiate_config(config["data"])
    return training_memory._estimate_phase_peaks(config, build_on_meta(config, data), data, spread)


def estimate_peak(config, device):
    data = instantiate_config(config["data"])
    return training_memory.estimate_peak_memory(config, build_on_meta(config, data), data, device)


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
def test_a_forward_pass_holds_little_more_than_saved_tensors(compose, line):
    config = compose("data.batch_size=16", *line)
    data = instantiate_config(config["data"])
    module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    batch = data.task.train_batch(0, 0, 16)
    saved = resources.count_saved_bytes(lambda: module.losses(batch).sum(), module.model)
    weights = 4 * 4 * sum(parameter.numel() for parameter in module.parameters())
    forward, backward, _, validation = (peak - weights for peak in estimate_phases(config))
    assert 0.7 * saved < forward < 2 * saved
    assert backward > 0
    assert validation > 0


def test_import_memory_is_measured_before_the_corpus_is_read(compose, monkeypatch):
    order = []
    monkeypatch.setattr(
        training_memory, "measure_import_memory", cache(training_memory.measure_import_memory.__wrapped__)
    )
    monkeypatch.setattr(
        training_memory, "read_peak_memory", lambda device: order.append("memory") or {"peak_rss_bytes": 1}
    )
    monkeypatch.setattr(
        preflight,
        "instantiate_config",
        lambda *given, **more: order.append("made") or instantiate_config(*given, **more),
    )
    assert check(compose())["memory_bytes"] > 1
    assert order[:2] == ["memory", "made"]
    assert order.count("memory") == 1


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize(("mode", "more"), [("offline", training_memory.WANDB_BYTES), ("disabled", 0)])
def test_wandb_adds_memory(compose, monkeypatch, mode, more):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = compose("logger=wandb", f"logger.mode={mode}")
    plain = compose("logger=none")
    assert estimate_peak(config, "cpu") - estimate_peak(plain, "cpu") == more
    assert estimate_peak(config, "cuda") == estimate_peak(plain, "cuda")


def test_uniform_layers_are_extrapolated_exactly(compose):
    config = compose("model.n_layers=7")
    data = instantiate_config(config["data"])
    module = build_on_meta(config, data)
    example = data.task.train_batch(0, 0, 1)
    with enable_fake_tensors(), training_memory._disable_onednn():
        replace_parameters(module)
        all_layers = training_memory._estimate_step_peaks(config, module, data.task, example, 1.0)
    assert max(estimate_phases(config)) == max(all_layers)


class PeakRecorder(pl.Callback):
    """Records the peak of live bytes from the first batch to the end of training."""

    def __init__(self, live):
        self.live = live
        self.peak_bytes = None

    def on_train_batch_start(self, *given):
        if self.peak_bytes is None:
            self.live.peak_bytes = self.live.current_bytes
        self.peak_bytes = self.live.peak_bytes

    def on_train_end(self, *given):
        self.peak_bytes = self.live.peak_bytes


def measure_training_peak(config, folder):
    """Train with Lightning, and return the peak bytes of all live tensors."""
    data = instantiate_config(config["data"])
    module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    live = training_memory.LiveMemoryCounter(module.model)
    recorder = PeakRecorder(live)
    trainer = instantiate_config(
        config["trainer"],
        **trainer_settings.QUIET_SETTINGS,
        logger=False,
        default_root_dir=str(folder),
        max_epochs=1,
        val_check_interval=config["trainer"]["max_steps"] * config["trainer"]["accumulate_grad_batches"],
        callbacks=[recorder],
    )
    with trainer_settings.silence_lightning(), live:
        trainer.fit(module, data)
    tensors = (*module.model.parameters(), *module.model.buffers())
    return recorder.peak_bytes + sum(tensor.untyped_storage().nbytes() for tensor in {*tensors})


@pytest.mark.parametrize(
    "line",
    [
        ["kernel=sdpa"],
        ["kernel=eager"],
        ["model.tie=false"],
        ["trainer.accumulate_grad_batches=3"],
        ["residual=attention", "model.n_layers=5"],
        pytest.param(["residual=attention", "model.n_layers=9"], marks=pytest.mark.rare),
        pytest.param(["residual=hyper_connections", "model.n_layers=5"], marks=pytest.mark.rare),
        pytest.param(["layers=local_global", "model.n_layers=13"], marks=pytest.mark.rare),
        pytest.param(["layers=yoco", "model.n_layers=13"], marks=pytest.mark.rare),
        pytest.param(["trainer.precision=bf16-mixed", "kernel=eager"], marks=pytest.mark.rare),
        pytest.param(["model=llama", "block=sandwich", "model.dropout=0.1"], marks=pytest.mark.rare),
        pytest.param(["heads=mla", "mask=window"], marks=pytest.mark.rare),
        pytest.param(["model=gated_delta"], marks=pytest.mark.rare),
        pytest.param(["optim=muon"], marks=pytest.mark.rare),
    ],
)
def test_estimate_equals_the_live_tensors_of_a_training(compose, tmp_path, line):
    """Ratio of the two; 1.000 where layers are not extrapolated."""
    sizes = ["model.dim=32", "model.n_layers=4", "data.length=64", "data.batch_size=8", "trainer.max_steps=3"]
    config = compose(*sizes, *line)
    ratio = max(estimate_phases(config)) / measure_training_peak(config, tmp_path)
    assert 0.95 < ratio < 1.1


def test_file_pages_of_the_checked_process_are_counted_on_a_cpu(compose, monkeypatch):
    config = compose()
    training_memory.measure_import_memory()
    before = {device: estimate_peak(config, device) for device in ("cpu", "cuda")}
    file_bytes = training_memory._count_file_bytes()
    assert 10e6 < file_bytes < 1e9
    monkeypatch.setattr(training_memory, "_count_file_bytes", lambda: file_bytes + 10**8)
    after = {device: estimate_peak(config, device) for device in ("cpu", "cuda")}
    assert after["cpu"] - before["cpu"] == pytest.approx(10**8, rel=0.05)
    assert after["cuda"] == before["cuda"]


def test_memory_counts_gradients_moments_and_device_copies(compose):
    line = ["model.dim=64", "data.batch_size=2", "data.length=8", "data.val_batch_size=1"]
    one, two = compose(*line), compose(*line, "trainer.devices=2", "data.batch_size=4")
    weights = 4 * check(one)["parameters"]
    assert 4 * weights < max(estimate_phases(one)) < 4.5 * weights
    assert max(estimate_phases(two)) - max(estimate_phases(one)) == weights


def test_optimizer_state_is_counted(compose, monkeypatch):
    config = compose("model.dim=64", "data.batch_size=2", "data.val_batch_size=1")
    weights = 4 * check(config)["parameters"]
    adam = estimate_phases(config)
    sgd = lambda self, _: (torch.optim.SGD(self.parameters(), lr=0.1), None)  # noqa: E731
    monkeypatch.setattr(LanguageModel, "optimizer", sgd)
    assert adam[0] - estimate_phases(config)[0] == pytest.approx(2 * weights, rel=0.01)


def test_an_unavailable_kernel_counts_as_a_fused_one(compose):
    config = compose()
    as_flex = compose("kernel=flex")
    assert isinstance(build_model(as_flex, 9).blocks[0].mixer.kernel, Flex)
    assert estimate_phases(as_flex)[0] == pytest.approx(estimate_phases(config)[0], rel=0.05)


def test_a_part_that_reads_values_leaves_the_memory_unknown(compose, monkeypatch):
    monkeypatch.setattr(training_memory, "cross_entropy", lambda logits, _: logits * logits.max().item())
    assert estimate_peak(compose(), "cpu") is None


@pytest.mark.parametrize(("gpu", "gib"), [("NVIDIA H200", 139.8), ("NVIDIA H100 80GB HBM3", 78.4),
                                           ("NVIDIA A100-SXM4-40GB", 39.2), ("a card", None)])  # fmt: skip
def test_gpu_memory_is_known_by_name(gpu, gib):
    assert memory_limits.get_planned_memory({"sweep": {"device": gpu}}, "cpu") == (
        None if gib is None else int(gib * 2**30)
    )


def test_a_model_beyond_the_planned_gpu_is_rejected(compose):
    config = compose("sweep.device='Tesla T4'", "model.dim=8192", "model.n_layers=3")
    with pytest.raises(ValueError, match=r"the memory is 14.6 GB \(Tesla T4\)"):
        check(config)
    assert check(compose("sweep.device='Tesla T4'"))["device_memory_bytes"] == int(14.6 * 2**30)
