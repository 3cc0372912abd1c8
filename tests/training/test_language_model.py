"""Loss, learning-rate schedule and optimizer groups."""

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.model.build import build_model, instantiate_config
from attnlab.training import run
from attnlab.training.language_model import LanguageModel

torch.set_num_threads(1)


@pytest.fixture
def module(compose):
    config = compose("optim.lr=0.5", "optim.min_lr=0.1", "optim.warmup=4")
    return instantiate_config(config["optim"], model=build_model(config, 31))


def test_unscored_targets_have_no_loss(module):
    tokens = torch.arange(22).view(2, 11)
    targets = tokens.roll(-1, 1)
    masked = targets.clone()
    masked[:, 5:] = -100
    all_losses, masked_losses = (module.losses({"tokens": tokens, "targets": t}) for t in (targets, masked))
    assert torch.equal(masked_losses[:, :5], all_losses[:, :5])
    assert (masked_losses[:, 5:] == 0).all()


def test_packed_documents_have_the_losses_of_separate_ones(module):
    tokens, targets = torch.arange(11)[None], torch.arange(1, 12)[None]
    ids = torch.tensor([[0] * 5 + [1] * 6])
    packed = module.losses({"tokens": tokens, "targets": targets, "documents": ids})
    alone = module.losses({"tokens": tokens[:, 5:], "targets": targets[:, 5:]})
    torch.testing.assert_close(packed[:, 5:], alone, rtol=1e-5, atol=1e-6)  # rotary: only distances matter


def test_packed_names_have_the_losses_of_separate_ones(tmp_path, compose):
    file = tmp_path / "names.txt"
    file.write_text("bea\nal\nzoe\ncleo\nbo\nann\nu\nida\n")
    alone, packed = (compose("data=names", "data.path=" + str(file), f"data.pack={pack}") for pack in (1, 3))
    tasks = [instantiate_config(config["data"]).task for config in (alone, packed)]
    module = instantiate_config(alone["optim"], model=build_model(alone, tasks[0].vocab_size))
    single, batch = (
        module.losses(task.train_batch(0, 0, rows)) for task, rows in zip(tasks, (6, 2), strict=True)
    )
    scored = [losses[losses != 0] for losses in (single, batch)]
    torch.testing.assert_close(scored[1], scored[0], rtol=1e-4, atol=1e-5)


def test_the_learning_rate_rises_then_falls_as_a_cosine_to_its_floor(module):
    optimizer, schedule = module.optimizer(25)
    rates = []
    for _ in range(25):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert rates[4] == pytest.approx(0.5)
    assert rates[14] == pytest.approx(0.3)
    assert rates[24] == pytest.approx(0.1)


@pytest.mark.rare(sample=3)
@pytest.mark.parametrize(
    ("steps", "warmup", "expected"),
    [
        (9, 2, {0: 0.5 / 3, 1: 1 / 3, 2: 0.5, 5: 0.3, 8: 0.1}),
        (5, 0, {0: 0.5, 2: 0.3, 4: 0.1}),
        (4, 2, {1: 1 / 3, 2: 0.5, 3: 0.1}),
        (3, 2, {0: 0.5 / 3, 1: 1 / 3, 2: 0.5}),  # the last step is the peak
        (2, 4, {0: 0.1, 1: 0.2}),  # training ends within the warm-up
        (1, 0, {0: 0.5}),
        (1, 3, {0: 0.125}),
    ],
)
def test_the_last_step_of_a_training_uses_the_floor_of_the_learning_rate(
    compose, make_run_dir, monkeypatch, steps, warmup, expected
):
    used = []
    monkeypatch.setattr(
        LanguageModel,
        "on_before_optimizer_step",
        lambda self, optimizer: used.append(optimizer.param_groups[0]["lr"]),
    )
    line = ["optim.lr=0.5", "optim.min_lr=0.1", f"optim.warmup={warmup}", f"trainer.max_steps={steps}"]
    folder = make_run_dir("run", compose(*line, "trainer.log_every_n_steps=1", "measure.maps=0"))
    run.run(folder)
    assert len(used) == steps
    assert {step: used[step] for step in expected} == pytest.approx(expected, rel=1e-12)
    rows = pq.read_table(folder / "curves.parquet").to_pylist()
    assert [row["value"] for row in rows if row["name"] == "train/lr"] == used


def test_weight_decay_applies_to_matrices_only(module):
    decayed, plain = module.optimizer(10)[0].param_groups
    assert decayed["weight_decay"] == 0.1
    assert plain["weight_decay"] == 0
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert all(p.ndim < 2 for p in plain["params"])
    count = sum(len(group["params"]) for group in (decayed, plain))
    assert count == len(list(module.model.parameters()))
