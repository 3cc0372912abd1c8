"""The data module: resumption, validation, workers, micro-batches and its description."""

import json
from hashlib import sha256

import pytest
import pytorch_lightning as pl
import torch

from attnlab.data.data_module import DataModule, StepLoader, take_rows

# Lightning uses a deprecated torch function
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

CHARACTERS = "".join(sorted("ab cdé\nfg—hij🙂"))  # of the text of `novel_path`


class BatchRecorder(pl.LightningModule):
    """Trains one number, with noise from the global random state, and records its batches."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained_tokens, self.validated_tokens = [], []

    def training_step(self, batch, index):
        self.trained_tokens.append(batch["tokens"])
        return (self.weight - batch["tokens"].float().mean() - torch.rand(())).square()

    def validation_step(self, batch, index):
        self.validated_tokens.append(batch["tokens"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: DataModule, steps: int, checkpoint=None, accumulate: int = 1, **settings):
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    model = BatchRecorder()
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=False if checkpoint else None)
    return trainer, model


@pytest.fixture
def make_data_module(text_task_factory):
    return lambda seed=0, **changes: DataModule(
        text_task_factory, **{"batch_size": 3, "val_batch_size": 4, "seed": seed} | changes
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_gets_the_batches_of_an_uninterrupted_one(make_data_module, tmp_path, accumulate):
    _, uninterrupted = fit(make_data_module(), 7, accumulate=accumulate)
    trainer, first = fit(make_data_module(), 3, accumulate=accumulate)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, second = fit(make_data_module(), 7, checkpoint=tmp_path / "half.ckpt", accumulate=accumulate)
    assert len(uninterrupted.trained_tokens) == 7 * accumulate
    assert torch.equal(
        torch.stack(first.trained_tokens + second.trained_tokens), torch.stack(uninterrupted.trained_tokens)
    )


def test_batches_equal_those_of_the_task(make_data_module):
    module = make_data_module(seed=5)
    _, model = fit(module, 4)
    expected = [module.task.train_batch(5, i, 3)["tokens"] for i in range(4)]
    assert torch.equal(torch.stack(model.trained_tokens), torch.stack(expected))


def test_validation_batches_are_the_same_for_all_seeds_and_steps(make_data_module):
    _, one = fit(make_data_module(seed=0), 4, val_check_interval=2)
    _, other = fit(make_data_module(seed=1), 4, val_check_interval=2)
    half = len(one.validated_tokens) // 2
    assert half == len(make_data_module().val_dataloader())
    assert torch.equal(torch.cat(one.validated_tokens), torch.cat(other.validated_tokens))
    assert torch.equal(torch.cat(one.validated_tokens[:half]), torch.cat(one.validated_tokens[half:]))
    assert not torch.equal(torch.stack(one.trained_tokens), torch.stack(other.trained_tokens))


def test_validation_leaves_the_random_state_unchanged(make_data_module):
    weights = []
    for settings in ({"val_check_interval": 1}, {"limit_val_batches": 0}):
        torch.manual_seed(3)
        weights.append(fit(make_data_module(), 5, **settings)[1].weight.item())
    assert weights[0] == weights[1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_worker_processes_give_equal_batches_and_weights(make_data_module, accumulate):
    runs = []
    for workers in (0, 2):
        torch.manual_seed(3)
        runs.append(fit(make_data_module(num_workers=workers), 5, accumulate=accumulate)[1])
    assert torch.equal(torch.stack(runs[0].trained_tokens), torch.stack(runs[1].trained_tokens))
    assert runs[0].weight.item() == runs[1].weight.item()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_draw_the_batches(workers):
    def draw(step):
        made_by_worker = torch.utils.data.get_worker_info() is not None
        return [torch.tensor([step, part, made_by_worker]) for part in range(2)]

    steps = StepLoader(draw, start=lambda: 2, stop=5, workers=workers, passes=2)
    batches = torch.stack(list(steps))
    assert batches.tolist() == [[step, part, bool(workers)] for step in (2, 3, 4) for part in range(2)]
    assert len(steps) == 10


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_batch_partition_its_rows(parts):
    batch = {"tokens": torch.arange(35).view(7, 5), "lengths": torch.arange(7)}
    shares = [take_rows(batch, part, parts) for part in range(parts)]
    assert sorted(torch.cat([one["tokens"] for one in shares]).flatten().tolist()) == list(range(35))
    assert all(torch.equal(one["tokens"][:, 0], 5 * one["lengths"]) for one in shares)


@pytest.mark.parametrize(
    ("batches", "split", "ranks"), [(1, 1, 1), (1, 3, 1), (2, 1, 1), (2, 3, 1), (2, 1, 3), (2, 3, 2)]
)
def test_a_step_draws_each_batch_once_and_counts_the_targets_of_all(
    make_data_module, monkeypatch, batches, split, ranks
):
    module = make_data_module(batch_size=6)
    module.micro_batches = split
    drawn_steps, draw = [], module.task.train_batch

    def count_draws(seed, step, batch_size):
        drawn_steps.append(step)
        return draw(seed, step, batch_size)

    monkeypatch.setattr(module.task, "train_batch", count_draws)
    batches_by_rank = [module._draw_step_batches(4, batches * split, rank, ranks) for rank in range(ranks)]
    numbers = [4 * batches + n for n in range(batches)]
    assert drawn_steps == numbers * ranks
    parts = [part for rank in batches_by_rank for part in rank]
    assert len(parts) == batches * split * ranks
    expected_tokens = torch.cat([draw(0, n, 6)["tokens"] for n in numbers])
    tokens = torch.cat([part["tokens"] for part in parts])
    assert sorted(tokens.tolist()) == sorted(expected_tokens.tolist())
    scored = {int(part["scored"]) for part in parts if "scored" in part}
    assert scored == (set() if len(parts) == 1 else {expected_tokens.numel()})


def test_options_are_passed_to_the_task_and_misspelled_ones_rejected(make_data_module):
    assert make_data_module(length=5).task.length == 5
    with pytest.raises(TypeError, match="lenght"):
        make_data_module(lenght=5)


def test_probe_tokens_are_the_first_validation_windows(make_data_module):
    module = make_data_module()
    batch = module.task.val_batches(6)[0]["tokens"]
    assert torch.equal(module.probe_tokens(6), batch)
    assert make_data_module(length=150).probe_tokens(1).shape == (1, 128)


def test_the_description_has_the_properties_of_the_task(make_data_module):
    module = make_data_module(val_windows=5)
    description = module.describe()
    assert description.pop("validation") != make_data_module(val_windows=6).describe()["validation"]
    assert description == {
        "name": "novel",
        "sha256": module.task.fingerprint,
        "train_tokens": 807,
        "val_tokens": 202,
        "vocab_size": module.task.vocab_size,
        "val_windows": 5,
        "unit": "char",
        "vocabulary": sha256(json.dumps(["char", CHARACTERS], separators=(",", ":")).encode()).hexdigest(),
        "val_text": module.task.val_text["sha256"],
        "overlap": {"windows": 0, "lines": module.task.overlap["lines"]},
    }


def test_the_validation_digest_depends_on_scored_tokens_only(make_data_module):
    digest = make_data_module(val_windows=5).describe()["validation"]
    for same in ({"val_batch_size": 2}, {"batch_size": 3}, {"seed": 9}):
        assert make_data_module(val_windows=5, **same).describe()["validation"] == digest
    for other in ({"length": 5}, {"val_fraction": 0.3}):
        assert make_data_module(val_windows=5, **other).describe()["validation"] != digest

    class Easier(type(make_data_module())):
        def val_dataloader(self):
            for batch in super().val_dataloader():
                yield {**batch, "targets": batch["targets"].masked_fill(batch["targets"] > 3, -100)}

    easier = make_data_module(val_windows=5)
    easier.__class__ = Easier
    assert easier.describe()["validation"] != digest, "the digest covers the module's batches, not the task's"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, r"data\.batch_size must .* at least 1, got 0"),
        ({"batch_size": 2.5}, r"data\.batch_size must be an integer .* got 2\.5"),
        ({"val_batch_size": -1}, r"data\.val_batch_size must .* at least 1, got -1"),
        ({"num_workers": -1}, r"data\.num_workers must .* at least 0, got -1"),
    ],
)
def test_invalid_settings_are_rejected(make_data_module, changes, message):
    with pytest.raises(ValueError, match=message):
        make_data_module(**changes)


def test_a_run_without_max_steps_is_rejected(make_data_module):
    with pytest.raises(ValueError, match=r"trainer\.max_steps must be at least 1, got -1"):
        fit(make_data_module(), -1, max_epochs=1)
