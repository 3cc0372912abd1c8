"""Search of the best learning rate: training at every rate of a grid, from the same weights and batches."""

import math
from collections.abc import Callable
from typing import Any

import torch

from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.studies.fits import validate_positive
from attnlab.measure.studies.validation_losses import compute_validation_loss
from attnlab.store.run_schema import Metric

MAX_EXTENSIONS = 12  # enough for the grid to include learning rates that are too small and too large
METRICS = (
    Metric("rate/best", "best learning rate, as a power of two", "doublings"),
    Metric("rate/loss", "validation loss at the best learning rate of the grid", "nats", "lower"),
)


class LearningRateSearch:
    """Trains at `count` learning rates: `first`, twice that, and so on.

    Each trains for `steps` steps with the optimizer and schedule of the run (warm-up included). The criterion
    is the validation loss, infinite if training diverged. While the best learning rate is at the edge of the
    grid, the grid is extended.

    Metrics: `rate/best`, log2 of the learning rate at the minimum of the parabola through the best point and
    its neighbors (the best point itself if a neighbor diverged); `rate/loss`. Series: the loss by learning
    rate, in millionths.
    """

    metrics = METRICS

    def __init__(self, steps: int, first: float, count: int, clip: float | None) -> None:
        validate_positive(steps=steps, count=count)
        if count < 3 or not first > 0:
            raise ValueError(f"measurement needs first > 0 and count >= 3, got {first} and {count}")
        self.steps = steps
        self.first = first
        self.count = count
        self.clip = clip

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Train once for every learning rate.

        Raises:
            FloatingPointError: no learning rate has a worse one on each side.
        """
        initial_weights = {name: value.clone() for name, value in module.model.state_dict().items()}
        min_lr_ratio = module.min_lr / module.lr

        def compute_loss(n: int) -> float:
            module.model.load_state_dict(initial_weights)
            module.lr = self.first * 2**n
            module.min_lr = min_lr_ratio * module.lr
            return self._train_and_validate(module, data, device)

        losses = search_grid(compute_loss, self.count)
        best_point = interpolate_minimum(losses)
        finite_losses = {n: value for n, value in sorted(losses.items()) if math.isfinite(value)}
        series = {round(1e6 * self.first * 2**n): value for n, value in finite_losses.items()}
        metrics = {"rate/best": math.log2(self.first) + best_point, "rate/loss": min(losses.values())}
        return MeasurementResult(metrics, series={"loss_by_millionths": series})

    def _train_and_validate(self, module: Any, data: Any, device: str) -> float:
        """Return the validation loss after training at the module's learning rate, infinite if diverged."""
        optimizer, schedule = module.optimizer(self.steps)
        module.train()
        for step in range(self.steps):
            batch = data.task.train_batch(data.seed, step, data.batch_size)
            device_batch = {key: value.to(device) for key, value in batch.items()}
            loss = module.losses(device_batch).sum() / (device_batch["targets"] >= 0).sum()
            if not loss.isfinite():
                return math.inf
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            module.configure_gradient_clipping(optimizer, self.clip, None)
            optimizer.step()
            schedule.step()
        module.eval()
        with torch.no_grad():
            val_loss = compute_validation_loss(module, data.val_dataloader(), device)
        return val_loss if math.isfinite(val_loss) else math.inf


def search_grid(compute_loss: Callable[[int], float], count: int) -> dict[int, float]:
    """Return losses of the points 0 to count - 1, extended until the best has a neighbor on each side.

    Raises:
        FloatingPointError: `MAX_EXTENSIONS` extensions do not reach that.
    """
    losses = {n: compute_loss(n) for n in range(count)}
    for _ in range(MAX_EXTENSIONS):
        best = min(losses, key=lambda n: (losses[n], n))
        if losses[best] == math.inf:
            best = min(losses)  # all diverged: try smaller learning rates
        missing_neighbors = [n for n in (best - 1, best + 1) if n not in losses]
        if not missing_neighbors:
            return losses
        losses |= {n: compute_loss(n) for n in missing_neighbors}
    raise FloatingPointError(f"the best of {len(losses)} learning rates is at the edge of the grid")


def interpolate_minimum(losses: dict[int, float]) -> float:
    """Return the minimum of the parabola through the best point and its neighbors, within half a step."""
    best = min(losses, key=lambda n: losses[n])
    left, lowest, right = (losses[n] for n in (best - 1, best, best + 1))
    curvature = left - 2 * lowest + right
    return best + (left - right) / (2 * curvature) if 0 < curvature < math.inf else float(best)
