"""LightningModule of a language model: training step, validation, optimizer with its learning-rate schedule.

Metrics are named split/metric. Nothing is logged through `self.log`: at these step times it would cost more
than the step's arithmetic.
"""

import math
from collections.abc import Callable
from typing import Any, final

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnlab.attention.contracts import Mask
from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.seeds import derive_seed
from attnlab.training.optim.adamw import adamw
from attnlab.training.optim.schedules import Schedule

Batch = dict[str, Tensor]


class DivergenceError(FloatingPointError):
    """The loss is no longer finite; carries the optimizer step."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the loss is not finite at step {step}")
        self.step = step


@final
class LanguageModel(pl.LightningModule):
    """Next-token training of `model` on batches {tokens, targets, lengths?, documents?, scored?}.

    The model's auxiliary losses are trained with their weights, and recorded apart from the loss.
    Targets of -100 are not scored. `scored` is the number of scored targets in the whole optimizer step, for
    a batch that is a part of it. The random state of step n depends on (seed, n) alone, so a resumed run uses
    the same dropout masks as an uninterrupted run.

    Args:
        lr: Peak learning rate, reached linearly over `warmup` steps; parameter groups scale it.
        min_lr: Learning rate at the trainer's last step.
        schedule: Its course from `lr` to `min_lr`.
        optimizer: `optimizer(model, lr=, betas=, weight_decay=)` builds the optimizer with its groups.
        compile: Whether to compile the model, together with the loss in training: a compiled loss stores no
            float32 copy of the logits.
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
        schedule: Schedule,
        optimizer: Callable[..., torch.optim.Optimizer] = adamw,
    ) -> None:
        super().__init__()
        if min_lr > lr:
            raise ValueError(f"optim.min_lr={min_lr} is above optim.lr={lr}: lower it, or raise optim.lr")
        self.model = model
        self.lr = lr
        self.min_lr = min_lr
        self.warmup = warmup
        self.betas: Any = tuple(betas)  # a list in YAML
        self.weight_decay = weight_decay
        self.seed = seed
        self.schedule = schedule
        self.make_optimizer = optimizer
        self._compute_logits = torch.compile(_compute_logits) if compile else _compute_logits
        self._compute_losses = torch.compile(_compute_losses) if compile else _compute_losses
        self.last_loss: Tensor | None = None  # of the last complete optimizer step
        self.last_auxiliary: dict[str, Tensor] = {}  # likewise
        self._step_loss: Any = None  # sum over the forward passes of the current step
        self._step_auxiliary: dict[str, Tensor] = {}
        self.validation_results: dict[str, Any] = {}

    def logits(self, batch: Batch, auxiliary: dict[str, Tensor] | None = None) -> Tensor:
        """Return [B, T, vocabulary]; padding and other documents are masked.

        The model adds its auxiliary losses to the entries of `auxiliary`.
        """
        return self._compute_logits(self.model, batch["tokens"], make_batch_mask(batch), auxiliary)

    def losses(self, batch: Batch, auxiliary: dict[str, Tensor] | None = None) -> Tensor:
        """Return the cross-entropy per target [B, T] in nats, 0 for unscored targets; else like `logits`."""
        mask = make_batch_mask(batch)
        return self._compute_losses(self.model, batch["tokens"], batch["targets"], mask, auxiliary)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed this step as a function of (seed, step), and with several devices of the rank."""
        rank = (self.global_rank,) if self.global_rank else ()
        seed = derive_seed(self.seed, "step", batch_idx, *rank)
        # torch.manual_seed would store a stack trace for every unused device type.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one forward pass.

        Its mean over the passes and devices of an optimizer step, which the trainer takes, is the mean over
        all scored targets of that step.

        Raises:
            DivergenceError: That mean is not finite.
        """
        auxiliary: dict[str, Tensor] = {}
        losses = self.losses(batch, auxiliary if self.model.auxiliary_weights else None)
        trainer = self.trainer
        passes = trainer.accumulate_grad_batches
        if "scored" in batch:
            loss = losses.sum() / batch["scored"] * (passes * trainer.world_size)
        else:
            loss = losses.sum() / (batch["targets"] >= 0).sum()
        is_first = batch_idx % passes == 0
        is_last = (batch_idx + 1) % passes == 0
        self._step_loss = loss.detach() if is_first else self._step_loss + loss.detach()
        for name, value in auxiliary.items():
            self._step_auxiliary[name] = value.detach() + (0 if is_first else self._step_auxiliary[name])
            loss = loss + self.model.auxiliary_weights[name] * value
        if is_last:
            self.last_auxiliary = {
                name: self._average_devices(value / passes) for name, value in self._step_auxiliary.items()
            }
            self._end_step(self._step_loss / passes)
        return loss

    def _end_step(self, loss: Tensor) -> None:
        """Store the loss of an optimizer step over all devices; on a CPU check each step."""
        loss = self.last_loss = self._average_devices(loss)
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by its logger connector
        if loss.device.type == "cpu" or self.trainer.global_step % every == 0:
            self.require_finite()

    def _average_devices(self, value: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return value
        return self.trainer.strategy.reduce(value.clone(), reduce_op="mean")

    def require_finite(self) -> None:
        """Check the last loss; synchronizes a GPU, so it is not called at every step there.

        Raises:
            DivergenceError: The last loss is NaN or infinite.
        """
        if self.last_loss is not None and not math.isfinite(self.last_loss.item()):
            raise DivergenceError(self.trainer.global_step)

    def on_validation_epoch_start(self) -> None:
        """Reset the sums."""
        self._loss_sum: Any = 0.0  # becomes a tensor by position
        self._target_count: Any = 0
        self._answer_batches: list[tuple[Tensor, Tensor, Tensor]] = []
        self._auxiliary_sums: dict[str, Tensor] = {}  # over all tokens
        self._token_count = 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add this batch's losses to the sums per position; store accuracy and loss of each answer."""
        auxiliary: dict[str, Tensor] | None = {} if self.model.auxiliary_weights else None
        logits = self.logits(batch, auxiliary)
        n_tokens = batch["tokens"].numel()
        self._token_count += n_tokens
        for name, value in (auxiliary or {}).items():
            self._auxiliary_sums[name] = self._auxiliary_sums.get(name, 0.0) + n_tokens * value.double()
        targets = batch["targets"]
        scored = targets >= 0
        losses = cross_entropy(logits, targets).double()
        self._loss_sum = self._loss_sum + losses.sum(0)
        self._target_count = self._target_count + scored.sum(0)
        if "condition" in batch:
            is_correct = logits.argmax(-1) == targets
            self._answer_batches.append(
                (batch["condition"][scored], is_correct[scored].double(), losses[scored])
            )

    def on_validation_epoch_end(self) -> None:
        """Compute the mean loss over all targets and by position (NaN for positions without targets).

        A task with conditions also gets the accuracy, the proportion of targets with the highest logit,
        overall and by condition, and the loss by condition.
        """
        loss = (self._loss_sum.sum() / self._target_count.sum()).item()
        if not math.isfinite(loss):
            raise DivergenceError(self.trainer.global_step)
        by_position = (self._loss_sum / self._target_count).tolist()
        self.validation_results = {"step": self.trainer.global_step, "loss": loss, "by_position": by_position}
        self.validation_results["targets_by_position"] = self._target_count.long().tolist()
        self.validation_results["auxiliary"] = {
            name: value.item() / self._token_count for name, value in self._auxiliary_sums.items()
        }
        if self._answer_batches:
            condition, is_correct, losses = map(torch.cat, zip(*self._answer_batches, strict=True))
            counts = torch.bincount(condition)
            self.validation_results |= {
                "accuracy": is_correct.mean().item(),
                "by_condition": (torch.bincount(condition, weights=is_correct) / counts).tolist(),
                "loss_by_condition": (torch.bincount(condition, weights=losses) / counts).tolist(),
            }

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip here: Lightning refuses with a fused optimizer in bf16-mixed, though nothing is scaled.

        Parts that learn from an auxiliary loss alone (`learns_alone`) have a norm of their own: their loss
        does not limit the steps of other parameters.
        """
        if not gradient_clip_val:
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        modules = self.model.modules() if self.model.auxiliary_weights else ()
        alone = {
            parameter
            for module in modules
            if getattr(module, "learns_alone", False)
            for parameter in module.parameters()
        }
        clip = (
            torch.nn.utils.clip_grad_norm_
            if gradient_clip_algorithm in (None, "norm")
            else torch.nn.utils.clip_grad_value_
        )
        clip([parameter for parameter in parameters if parameter not in alone], gradient_clip_val)
        if alone:
            clip([parameter for parameter in parameters if parameter in alone], gradient_clip_val)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedule."""
        optimizer, schedule = self.optimizer(self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def optimizer(self, max_steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Build the optimizer and its learning-rate schedule, for training with or without a trainer."""
        optimizer = self.make_optimizer(
            self.model, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay
        )
        floor = self.min_lr / self.lr

        def compute_lr_factor(step: int) -> float:
            return self.schedule.compute_factor(step, warmup=self.warmup, max_steps=max_steps, floor=floor)

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, compute_lr_factor)


def _compute_logits(
    model: Transformer, tokens_BT: Tensor, mask: Mask | None, auxiliary: dict[str, Tensor] | None = None
) -> Tensor:
    return model(tokens_BT, mask=mask, auxiliary_losses=auxiliary)


def _compute_losses(
    model: Transformer,
    tokens_BT: Tensor,
    targets_BT: Tensor,
    mask: Mask | None,
    auxiliary: dict[str, Tensor] | None = None,
) -> Tensor:
    return cross_entropy(_compute_logits(model, tokens_BT, mask, auxiliary), targets_BT)
