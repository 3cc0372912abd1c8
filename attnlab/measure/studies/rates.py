"""The learning rate that is best for a model: trained anew at every rate of a grid, from the same weights, on
the same batches.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from attnlab.measure.measurement import Measured
from attnlab.measure.studies.fits import positive
from attnlab.measure.studies.losses import validation_loss
from attnlab.store.schema import Metric

WIDEN = 12  # times at most: rates too small to learn anything, and too large, then lie within the grid
METRICS = (
    Metric("rate/best", "best learning rate, as a power of two", "doublings"),
    Metric("rate/loss", "validation loss at the best rate of the grid", "nats", "lower"),
)


class Rates:
    """Rates are `first`, twice that, and so on, `count` of them. Each trains for `steps` with the optimiser
    and schedule of the run (warm-up included) and is judged by the validation loss; one that diverged has an
    infinite one. While the best lies at an end, the grid goes on beyond it.

    Metrics: `rate/best`, log2 of the rate at the lowest point of the parabola through the best rate and its
    neighbours (the best itself where a neighbour diverged), and `rate/loss`. Series: the loss by rate, in
    millionths.
    """

    def __init__(self, steps: int, first: float, count: int, clip: float | None) -> None:
        positive(steps=steps, count=count)
        if count < 3 or not first > 0:
            raise ValueError(
                f"measurement: give a first rate above 0 and a count of 3 or more, got {first}, {count}"
            )
        self.steps = steps
        self.first = first
        self.count = count
        self.clip = clip

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in METRICS]

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Trains once for every rate. FloatingPointError where none has a worse one on each side."""
        start = {name: value.clone() for name, value in module.model.state_dict().items()}
        floor = module.min_lr / module.lr

        def loss(n: int) -> float:
            module.model.load_state_dict(start)
            module.lr = self.first * 2**n
            module.min_lr = floor * module.lr
            return self._trained(module, data, device)

        losses = searched(loss, self.count)
        place = lowest(losses)
        finite = {n: value for n, value in sorted(losses.items()) if math.isfinite(value)}
        series = {round(1e6 * self.first * 2**n): value for n, value in finite.items()}
        metrics = {"rate/best": math.log2(self.first) + place, "rate/loss": min(losses.values())}
        return Measured(metrics, declared=METRICS, series={"loss_by_millionths": series})

    def _trained(self, module: Any, data: Any, device: str) -> float:
        """The validation loss after training at the module's rate; infinite where it diverged."""
        optimizer, schedule = module.optimizer(self.steps)
        module.train()
        for step in range(self.steps):
            batch = data.task.train_batch(data.seed, step, data.batch_size)
            here = {key: value.to(device) for key, value in batch.items()}
            loss = module.losses(here).sum() / (here["targets"] >= 0).sum()
            if not loss.isfinite():
                return math.inf
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            module.configure_gradient_clipping(optimizer, self.clip, None)
            optimizer.step()
            schedule.step()
        module.eval()
        with torch.no_grad():
            found = validation_loss(module, data.val_dataloader(), device)
        return found if math.isfinite(found) else math.inf


def searched(loss: Callable[[int], float], count: int) -> dict[int, float]:
    """Losses of the points 0 to count - 1, and of those beyond until the best has a neighbour on each side.

    FloatingPointError where WIDEN more do not reach that.
    """
    losses = {n: loss(n) for n in range(count)}
    for _ in range(WIDEN):
        best = min(losses, key=lambda n: (losses[n], n))
        if losses[best] == math.inf:
            best = min(losses)  # all diverged: smaller ones are tried
        beyond = [n for n in (best - 1, best + 1) if n not in losses]
        if not beyond:
            return losses
        losses |= {n: loss(n) for n in beyond}
    raise FloatingPointError(f"the best of {len(losses)} rates lies at an end of them")


def lowest(losses: dict[int, float]) -> float:
    """Where the parabola through the best point and its neighbours is lowest: at most half a step away."""
    best = min(losses, key=lambda n: losses[n])
    before, here, after = (losses[n] for n in (best - 1, best, best + 1))
    bend = before - 2 * here + after
    return best + (before - after) / (2 * bend) if 0 < bend < math.inf else float(best)
