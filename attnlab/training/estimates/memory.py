"""The peak of memory in training, from shapes: a step is taken with tensors that hold nothing, on no device,
and what would be alive is added up.

Surprising: that is what torch asks of its allocators. On a CPU what the process has imported comes on top,
and holes between freed blocks: a third of what is alive, as measured with blocks of 1 to 30 MB.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.attention.contracts import Attended, AttentionInputs, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import of_batch
from attnlab.config import wandb_mode
from attnlab.measure.size import peak_memory
from attnlab.model.loss import cross_entropy
from attnlab.training.estimates.fake_tensors import fake_tensors, replace_parameters
from attnlab.training.module import LanguageModel

WORKSPACE = 2**25  # bytes that cuBLAS takes for itself
HOLES = 0.35  # of what comes and goes on a CPU, on top of it
WANDB = 155_000_000  # bytes of W&B's client, as measured with 0.31
SHORT = 16  # tokens of a window, where nothing is kept of the tokens before


def peak(config: Mapping[str, Any], module: LanguageModel, data: Any, device: str) -> int | None:
    """Bytes of one device at the worst moment of training and validation, as a record's `peak_cuda_bytes`
    has it, or `peak_rss_bytes` on a CPU. None where a part has to see numbers.

    `module` lives on the meta device, and is of no use afterwards: it loses layers and parameters.
    """
    base, spread = (imported() + _wandb(config), 1 + HOLES) if device == "cpu" else (WORKSPACE, 1.0)
    try:
        moments = _moments(config, module, data, spread)
    except Exception:  # a user's part may do anything with its numbers
        return None
    return base + max(moments)


@cache
def imported() -> int:
    """Bytes of this process when it is first asked: those of its imports, which are a run's too. To be asked
    before a text is read: one that is read for the first time takes more than any run.
    """
    return int(peak_memory(torch.device("cpu"))["peak_rss_bytes"])


def _wandb(config: Mapping[str, Any]) -> int:
    """What W&B takes of a run's process, where the run has a logger."""
    mode = wandb_mode((config.get("logger") or {}).get("mode"))
    return 0 if mode in (None, "disabled") else WANDB


class Live(TorchDispatchMode):
    """Within it the bytes of all storages that operations make are counted for as long as they live; those of
    `model` are not.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        own = (*model.parameters(), *model.buffers())
        self._seen: dict[int, Any] = {id(tensor.untyped_storage()): None for tensor in own}

    def highest(self, work: Callable[[], Any]) -> tuple[int, Any]:
        """The most bytes at a time while this is done, and what it gives."""
        self.peak = self.now
        result = work()
        return self.peak, result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensors in made if isinstance(made, list | tuple) else [made]:
            for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
                if isinstance(tensor, Tensor):
                    self._count(tensor)
        return made

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)  # torch keeps one object for a storage as long as that lives
        size = storage.nbytes()
        if key not in self._seen:
            self._seen[key] = weakref.ref(storage, lambda _: self._free(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _free(self, key: int, size: int) -> None:
        self.now -= size
        del self._seen[key]


def _moments(config: Mapping[str, Any], module: LanguageModel, data: Any, spread: float) -> list[int]:
    """Bytes at most in a forward pass, a backward pass, the optimizer's step and a validation; temporary ones
    count `spread` times. A deep model is estimated from its first layers.
    """
    model = module.model
    like = data.task.train_batch(0, 0, 1)
    blocks = model.blocks
    layers = len(blocks)
    period = len(config["model"].get("layers") or [{}])
    few = layers if layers <= 3 * period else period
    model.blocks = blocks[: 2 * few]
    with fake_tensors(), _own_cells():
        replace_parameters(model)
        for part in model.modules():
            if isinstance(part, Attention):
                part.kernel = _or_fused(part.kernel)
        model.blocks = blocks[:few]
        moments = _moments_of_a_step(config, module, data.task, like, spread)
        if few < layers:  # all periods are uniform: each adds as much as the second
            model.blocks = blocks[: 2 * few]
            more = _moments_of_a_step(config, module, data.task, like, spread)
            moments = [a + (b - a) * (layers - few) // few for a, b in zip(moments, more, strict=True)]
    return moments


def _moments_of_a_step(
    config: Mapping[str, Any], module: LanguageModel, task: Any, like: Mapping[str, Tensor], spread: float
) -> list[int]:
    """`_moments` of a model of fake tensors, with all of its layers. `like`: a batch of one row."""
    trainer = config["trainer"]
    model = module.model
    cells = any(isinstance(part, nn.RNNBase) for part in model.modules())
    length = SHORT if cells else task.length

    def batch(rows: int) -> dict[str, Tensor]:
        """As many tokens, in windows of `length`."""
        shape = (-(-rows * task.length // length), length)
        return {key: torch.empty(shape[: value.ndim], dtype=value.dtype) for key, value in like.items()}

    def losses(rows: dict[str, Tensor]) -> Tensor:
        mixed = trainer["precision"] == "bf16-mixed"
        with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
            return cross_entropy(model(rows["tokens"], mask=of_batch(rows)), rows["targets"])

    optimizer = module.optimizer(1)[0]
    with Live(model) as live:
        rows = batch(config["data"]["batch_size"] // trainer["devices"])
        forward, loss = live.highest(lambda: losses(rows).sum())
        backward, _ = live.highest(loss.backward)
        del loss, rows
        gradients = live.now
        step, _ = live.highest(optimizer.step)
        state = live.now - gradients
        model.zero_grad()
        rows = batch(min(config["data"]["val_batch_size"], task.val_windows))
        with torch.no_grad():
            validation, _ = live.highest(lambda: losses(rows))
    always = _bytes(model.parameters()) + _bytes(model.buffers()) + state
    always += gradients if trainer["devices"] > 1 else 0  # what is sent to the others
    # the gradients of a step are let go of once the next one's forward pass is done, unless they are summed
    summed = gradients if trainer["accumulate_grad_batches"] > 1 else 0
    stays = (always + gradients, always + summed, always - state + gradients, always + gradients)
    goes = (forward, backward, step - gradients, validation - state)
    return [a + int(spread * b) for a, b in zip(stays, goes, strict=True)]


@contextmanager
def _own_cells() -> Iterator[None]:
    """Recurrent cells are torch's own: oneDNN's keep about as much, and do not say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about processors that are not asked for
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _or_fused(kernel: Any) -> Any:
    """A kernel, or where it cannot compute here what any other fused one keeps: its inputs and outputs."""

    def either(inputs: AttentionInputs) -> Attended:
        try:
            return kernel(inputs)
        except (Unsupported, NotImplementedError):
            q, k, v = inputs[:3]
            out = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
            return Attended(out, lse=q.new_empty(q.shape[:3], dtype=torch.float32))

    return either


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
