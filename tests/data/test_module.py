import json
from hashlib import sha256

import pytest
import pytorch_lightning as pl
import torch

from attnlab.data.module import Data, Steps, take_rows

# Lightning's own use of a torch function that is going away
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

CHARACTERS = "".join(sorted("ab cdé\nfg—hij🙂"))  # of the novel


class Watch(pl.LightningModule):
    """Trains one number, with noise from the global random state, and keeps the batches it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen, self.scored = [], []

    def training_step(self, batch, index):
        self.seen.append(batch["tokens"])
        return (self.weight - batch["tokens"].float().mean() - torch.rand(())).square()

    def validation_step(self, batch, index):
        self.scored.append(batch["tokens"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: Data, steps: int, checkpoint=None, accumulate: int = 1, **settings):
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
    model = Watch()
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=False if checkpoint else None)
    return trainer, model


@pytest.fixture
def data(recipe):
    return lambda seed=0, **changes: Data(
        recipe, **{"batch_size": 3, "val_batch_size": 4, "seed": seed} | changes
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_sees_the_batches_that_it_would_have_seen(data, tmp_path, accumulate):
    _, whole = fit(data(), 7, accumulate=accumulate)
    trainer, first = fit(data(), 3, accumulate=accumulate)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, second = fit(data(), 7, checkpoint=tmp_path / "half.ckpt", accumulate=accumulate)
    assert len(whole.seen) == 7 * accumulate
    assert torch.equal(torch.stack(first.seen + second.seen), torch.stack(whole.seen))


def test_a_batch_is_that_of_the_task(data):
    module = data(seed=5)
    _, model = fit(module, 4)
    wanted = [module.task.train_batch(5, i, 3)["tokens"] for i in range(4)]
    assert torch.equal(torch.stack(model.seen), torch.stack(wanted))


def test_validation_is_the_same_for_all_seeds_and_at_every_time(data):
    _, one = fit(data(seed=0), 4, val_check_interval=2)
    _, other = fit(data(seed=1), 4, val_check_interval=2)
    half = len(one.scored) // 2
    assert half == len(data().val_dataloader())
    assert torch.equal(torch.cat(one.scored), torch.cat(other.scored))
    assert torch.equal(torch.cat(one.scored[:half]), torch.cat(one.scored[half:]))
    assert not torch.equal(torch.stack(one.seen), torch.stack(other.seen))


def test_validating_does_not_touch_the_random_state(data):
    weights = []
    for settings in ({"val_check_interval": 1}, {"limit_val_batches": 0}):
        torch.manual_seed(3)
        weights.append(fit(data(), 5, **settings)[1].weight.item())
    assert weights[0] == weights[1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_workers_change_nothing(data, accumulate):
    runs = []
    for workers in (0, 2):
        torch.manual_seed(3)
        runs.append(fit(data(num_workers=workers), 5, accumulate=accumulate)[1])
    assert torch.equal(torch.stack(runs[0].seen), torch.stack(runs[1].seen))
    assert runs[0].weight.item() == runs[1].weight.item()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_batches_are_made_by_the_workers(workers):
    def draw(step):
        made_by_worker = torch.utils.data.get_worker_info() is not None
        return [torch.tensor([step, part, made_by_worker]) for part in range(2)]

    steps = Steps(draw, start=lambda: 2, stop=5, workers=workers, passes=2)
    found = torch.stack(list(steps))
    assert found.tolist() == [[step, part, bool(workers)] for step in (2, 3, 4) for part in range(2)]
    assert len(steps) == 10


@pytest.mark.parametrize("parts", [2, 3])
def test_the_parts_of_a_batch_have_each_row_once(parts):
    batch = {"tokens": torch.arange(35).view(7, 5), "lengths": torch.arange(7)}
    shares = [take_rows(batch, part, parts) for part in range(parts)]
    assert sorted(torch.cat([one["tokens"] for one in shares]).flatten().tolist()) == list(range(35))
    assert all(torch.equal(one["tokens"][:, 0], 5 * one["lengths"]) for one in shares)


@pytest.mark.parametrize(
    ("batches", "split", "ranks"), [(1, 1, 1), (1, 3, 1), (2, 1, 1), (2, 3, 1), (2, 1, 3), (2, 3, 2)]
)
def test_a_step_draws_each_batch_once_and_counts_the_targets_of_all(data, monkeypatch, batches, split, ranks):
    module = data(batch_size=6)
    module.split = split
    drawn, draw = [], module.task.train_batch

    def counting(seed, step, batch_size):
        drawn.append(step)
        return draw(seed, step, batch_size)

    monkeypatch.setattr(module.task, "train_batch", counting)
    told = [module._draw_step(4, batches * split, rank, ranks) for rank in range(ranks)]
    numbers = [4 * batches + n for n in range(batches)]
    assert drawn == numbers * ranks
    parts = [part for rank in told for part in rank]
    assert len(parts) == batches * split * ranks
    wanted = torch.cat([draw(0, n, 6)["tokens"] for n in numbers])
    found = torch.cat([part["tokens"] for part in parts])
    assert sorted(found.tolist()) == sorted(wanted.tolist())
    scored = {int(part["scored"]) for part in parts if "scored" in part}
    assert scored == (set() if len(parts) == 1 else {wanted.numel()})


def test_options_are_the_tasks_and_a_misspelt_one_is_refused(data):
    assert data(length=5).task.length == 5
    with pytest.raises(TypeError, match="lenght"):
        data(lenght=5)


def test_a_probe_is_the_first_validation_windows(data):
    module = data()
    batch = module.task.val_batches(6)[0]["tokens"]
    assert torch.equal(module.probe(6), batch)
    assert data(length=150).probe(1).shape == (1, 128)


def test_the_facts_are_those_of_the_task(data):
    module = data(val_windows=5)
    facts = module.facts()
    assert facts.pop("validation") != data(val_windows=6).facts()["validation"]
    assert facts == {
        "name": "novel",
        "sha256": module.task.fingerprint,
        "train_tokens": 807,
        "val_tokens": 202,
        "vocab_size": module.task.vocab_size,
        "val_windows": 5,
        "unit": "char",
        "vocabulary": sha256(json.dumps(["char", CHARACTERS], separators=(",", ":")).encode()).hexdigest(),
        "val_text": module.task.val_text["sha256"],
    }


def test_the_digest_of_validation_is_of_what_is_scored_and_of_nothing_else(data):
    digest = data(val_windows=5).facts()["validation"]
    for same in ({"val_batch_size": 2}, {"batch_size": 3}, {"seed": 9}):
        assert data(val_windows=5, **same).facts()["validation"] == digest
    for other in ({"length": 5}, {"val_fraction": 0.3}):
        assert data(val_windows=5, **other).facts()["validation"] != digest

    class Easier(type(data())):
        def val_dataloader(self):
            for batch in super().val_dataloader():
                yield {**batch, "targets": batch["targets"].masked_fill(batch["targets"] > 3, -100)}

    easier = data(val_windows=5)
    easier.__class__ = Easier
    assert easier.facts()["validation"] != digest, "what a module reads counts, not what its task has"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, r"data\.batch_size=0: .* at least 1"),
        ({"batch_size": 2.5}, r"data\.batch_size=2\.5: it must be a whole number"),
        ({"val_batch_size": -1}, r"data\.val_batch_size=-1: .* at least 1"),
        ({"num_workers": -1}, r"data\.num_workers=-1: .* at least 0"),
    ],
)
def test_bad_settings_are_refused(data, changes, message):
    with pytest.raises(ValueError, match=message):
        data(**changes)


def test_a_run_without_an_end_is_refused(data):
    with pytest.raises(ValueError, match=r"trainer\.max_steps=-1"):
        fit(data(), -1, max_epochs=1)
