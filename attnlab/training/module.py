"""The LightningModule: one training step, one validation pass, one optimiser with warm-up and cosine. Metrics
are named split/metric.

Nothing is logged through `self.log`: at these step times it would cost more than the step's arithmetic.
"""

import math
from collections.abc import Callable
from typing import Any, final

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnlab.attention.masks.data import of_batch
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.seeds import seed_of
from attnlab.training.optim.adamw import adamw

Batch = dict[str, Tensor]


class Diverged(FloatingPointError):
    """The loss stopped being a number; carries the optimiser step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the loss is not finite at step {step}")
        self.step = step


@final
class LanguageModel(pl.LightningModule):
    """Next-token training of `model` on batches {tokens, targets, lengths?, documents?, scored?}; targets of
    -100 do not count. `scored` is the number of targets that count in the whole optimizer step, for a batch
    that is a part of it.

    Learning rate: linear over `warmup` steps to `lr`, then cosine to `min_lr` at the trainer's last step; a
    group's is its share of that. `optimizer(model, lr=, betas=, weight_decay=)` makes one with its groups.
    `compile` compiles the model. The random state of step n depends on (seed, n) alone, so that a resumed
    run draws the dropout that an undisturbed one draws.
    """

    def __init__(
        self,
        model: Transformer,
        lr: float,
        min_lr: float,
        warmup: int,
        betas: tuple[float, float],
        weight_decay: float,
        compile: bool,
        seed: int,
        optimizer: Callable[..., torch.optim.Optimizer] = adamw,
    ) -> None:
        super().__init__()
        if min_lr > lr:
            raise ValueError(f"optim.min_lr={min_lr} is above optim.lr={lr}: lower it, or raise optim.lr")
        self.model = model
        self.lr = lr
        self.min_lr = min_lr
        self.warmup = warmup
        self.betas: Any = tuple(betas)  # a list in yaml
        self.weight_decay = weight_decay
        self.seed = seed
        self.make_optimizer = optimizer
        self._call = torch.compile(model) if compile else model
        self.last_loss: Tensor | None = None  # of the last whole optimizer step
        self._step_loss: Any = None  # the sum over the forward passes of the step so far
        self.validation: dict[str, Any] = {}

    def logits(self, batch: Batch) -> Tensor:
        """[B, T, vocabulary]; padding and other documents are out of sight."""
        return self._call(batch["tokens"], mask=of_batch(batch))

    def losses(self, batch: Batch) -> Tensor:
        """Cross-entropy per target [B, T] in nats, 0 where the target does not count."""
        return cross_entropy(self.logits(batch), batch["targets"])

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Makes this step's randomness a function of (seed, step), and on several devices of the rank."""
        rank = (self.global_rank,) if self.global_rank else ()
        seed = seed_of(self.seed, "step", batch_idx, *rank)
        # not torch.manual_seed: for every kind of device that is not in use it keeps a stack trace
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one forward pass. Its mean over the passes and devices of an optimizer step, which the
        trainer takes, is the mean over all targets that count in that step. Raises Diverged where that mean
        is not finite.
        """
        losses = self.losses(batch)
        trainer = self.trainer
        passes = trainer.accumulate_grad_batches
        if "scored" in batch:
            loss = losses.sum() / batch["scored"] * (passes * trainer.world_size)
        else:
            loss = losses.sum() / (batch["targets"] >= 0).sum()
        first = batch_idx % passes == 0
        last = (batch_idx + 1) % passes == 0
        self._step_loss = loss.detach() if first else self._step_loss + loss.detach()
        if last:
            self._end_step(self._step_loss / passes)
        return loss

    def _end_step(self, loss: Tensor) -> None:
        """Keeps the loss of an optimizer step, of all devices; looks at each one on a CPU."""
        if self.trainer.world_size > 1:
            loss = self.trainer.strategy.reduce(loss.clone(), reduce_op="mean")
        self.last_loss = loss
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # its logger connector's
        if loss.device.type == "cpu" or self.trainer.global_step % every == 0:
            self.require_finite()

    def require_finite(self) -> None:
        """Raises Diverged where the last loss is NaN or infinite; a synchronisation on a GPU, so not done
        at every step there.
        """
        if self.last_loss is not None and not math.isfinite(self.last_loss.item()):
            raise Diverged(self.trainer.global_step)

    def on_validation_epoch_start(self) -> None:
        """Empties the sums."""
        self._sum: Any = 0.0  # tensors by position from the first batch on
        self._count: Any = 0
        self._answers: list[tuple[Tensor, Tensor, Tensor]] = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds this batch's losses to the sums per position, and keeps what each answer was worth."""
        logits = self.logits(batch)
        targets = batch["targets"]
        scored = targets >= 0
        losses = cross_entropy(logits, targets).double()
        self._sum = self._sum + losses.sum(0)
        self._count = self._count + scored.sum(0)
        if "condition" in batch:
            right = logits.argmax(-1) == targets
            self._answers.append((batch["condition"][scored], right[scored].double(), losses[scored]))

    def on_validation_epoch_end(self) -> None:
        """Mean over all targets, and by position (NaN where a position has no target); for a task that has
        conditions the share of targets that got the highest logit, in all and by condition, and their loss.
        """
        loss = (self._sum.sum() / self._count.sum()).item()
        if not math.isfinite(loss):
            raise Diverged(self.trainer.global_step)
        by_position = (self._sum / self._count).tolist()
        self.validation = {"step": self.trainer.global_step, "loss": loss, "by_position": by_position}
        self.validation["targets_by_position"] = self._count.long().tolist()
        if self._answers:
            condition, right, losses = map(torch.cat, zip(*self._answers, strict=True))
            counts = torch.bincount(condition)
            self.validation |= {
                "accuracy": right.mean().item(),
                "by_condition": (torch.bincount(condition, weights=right) / counts).tolist(),
                "loss_by_condition": (torch.bincount(condition, weights=losses) / counts).tolist(),
            }

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips here: Lightning will not for a fused optimiser in bf16-mixed, though nothing is scaled."""
        if not gradient_clip_val:
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if gradient_clip_algorithm in (None, "norm"):
            torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val)
        else:
            torch.nn.utils.clip_grad_value_(parameters, gradient_clip_val)

    def configure_optimizers(self) -> Any:
        """The optimiser and its schedule."""
        optimizer, schedule = self.optimizer(self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def optimizer(self, max_steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """The optimizer and its learning-rate schedule, for a training with or without a trainer.

        Step s, counted from 0, uses lr (s + 1) / (warmup + 1) during warm-up, lr itself at s = warmup, and
        min_lr at s = max_steps - 1, with a cosine between them. Where warm-up leaves no step after its peak
        (max_steps <= warmup + 1), there is no decay: training ends on the warm-up, at lr at most; a single
        step without warm-up uses lr.
        """
        optimizer = self.make_optimizer(
            self.model, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay
        )
        floor = self.min_lr / self.lr

        def share_of_lr(step: int) -> float:
            if step < self.warmup:
                return (step + 1) / (self.warmup + 1)
            done = (step - self.warmup) / max(1, max_steps - 1 - self.warmup)
            return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_lr)
