"""Peak training memory, estimated from shapes: one step runs with fake tensors, and live bytes are counted.

The count is the memory that torch requests from its allocators. On a CPU, imports of the process come on top,
and fragmentation: half of the temporary memory, since a worker keeps freed blocks that no later block fits
(`retain_freed_memory`). Measured with blocks of 1 to 67 MB: 0.5 to 0.8; without keeping them, 0.2 to 0.3. The
native cells in place of oneDNN's underestimate an LSTM by a quarter; a GRU agrees.
"""

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.config import resolve_wandb_mode
from attnlab.measure.resources import read_peak_memory
from attnlab.model.loss import cross_entropy
from attnlab.training.estimates.fake_tensors import enable_fake_tensors, replace_parameters
from attnlab.training.language_model import LanguageModel

CUBLAS_WORKSPACE_BYTES = 2**25  # allocated by cuBLAS
CPU_FRAGMENTATION = 0.5  # extra proportion of temporary memory on a CPU
WANDB_BYTES = 155_000_000  # W&B client, measured with version 0.31
SHORT_WINDOW = 16  # tokens per window, for models without saved context


def estimate_peak_memory(
    config: Mapping[str, Any], module: LanguageModel, data: Any, device: str
) -> int | None:
    """Estimate the peak bytes per device over training and validation.

    The estimate corresponds to `peak_cuda_bytes` of a run result, or `peak_rss_bytes` on a CPU. `module`
    lives on the meta device and is unusable afterwards: it loses layers and parameters.

    Returns:
        None if a part needs real values.
    """
    temporary_factor = 1 + CPU_FRAGMENTATION if device == "cpu" else 1.0
    try:
        peaks = _estimate_phase_peaks(config, module, data, temporary_factor)
    except Exception:  # a user-defined part may do anything with its values
        return None
    base = (
        measure_import_memory() + _count_file_bytes() + _estimate_wandb_memory(config)
        if device == "cpu"
        else CUBLAS_WORKSPACE_BYTES
    )
    return base + max(peaks)


@cache
def measure_import_memory() -> int:
    """Return the bytes of this process at the first call: those of its imports, which a run has too.

    Pages of files are left out: the code of a library becomes resident when it first runs, and in a forked
    process again (`_count_file_bytes`). Call it before a corpus is read: tokenizing a new corpus takes more
    memory than any run.
    """
    return int(read_peak_memory(torch.device("cpu"))["peak_rss_bytes"]) - _count_file_bytes()


def _count_file_bytes() -> int:
    """Return the resident bytes of files that this process maps, such as library code and a corpus.

    After a check, which runs each kind of layer, they are nearly those of a run. 0 without Linux's /proc.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[2])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _estimate_wandb_memory(config: Mapping[str, Any]) -> int:
    """Return the memory of the W&B client in a run with a W&B logger."""
    mode = resolve_wandb_mode((config.get("logger") or {}).get("mode"))
    return 0 if mode in (None, "disabled") else WANDB_BYTES


class LiveMemoryCounter(TorchDispatchMode):
    """Context that counts the bytes of live storages that operations create, except those of `model`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.current_bytes = self.peak_bytes = 0
        model_tensors = (*model.parameters(), *model.buffers())
        self._storages: dict[int, Any] = {id(tensor.untyped_storage()): None for tensor in model_tensors}

    def measure_peak(self, work: Callable[[], Any]) -> tuple[int, Any]:
        """Run `work`; return the peak of live bytes, and its result."""
        self.peak_bytes = self.current_bytes
        result = work()
        return self.peak_bytes, result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensors in outputs if isinstance(outputs, list | tuple) else [outputs]:
            for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
                if isinstance(tensor, Tensor):
                    self._count_storage(tensor)
        return outputs

    def _count_storage(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)  # torch keeps one object per live storage
        size = storage.nbytes()
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._release_storage(key, size))
            self.current_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)

    def _release_storage(self, key: int, size: int) -> None:
        self.current_bytes -= size
        del self._storages[key]


def _estimate_phase_peaks(
    config: Mapping[str, Any], module: LanguageModel, data: Any, temporary_factor: float
) -> list[int]:
    """Return peak bytes of a forward pass, a backward pass, the optimizer step and a validation.

    A deep model is extrapolated from its first layers by a parabola, since each layer of attention over depth
    reads all layers before it.

    Args:
        temporary_factor: Weight of temporary bytes, above 1 for fragmentation.
    """
    model = module.model
    example = data.task.train_batch(0, 0, 1)
    blocks = model.blocks
    layers = len(blocks)
    period = len(config["model"].get("layers") or [{}])
    n_estimated = layers if layers <= 3 * period else period
    model.blocks = blocks[: 3 * n_estimated]
    with enable_fake_tensors(), _disable_onednn():
        replace_parameters(model)
        for part in model.modules():
            if isinstance(part, Attention):
                part.kernel = _add_fused_fallback(part.kernel)
        model.blocks = blocks[:n_estimated]
        peaks = _estimate_step_peaks(config, module, data.task, example, temporary_factor)
        if n_estimated < layers:
            longer_peaks = []
            for n_periods in (2, 3):
                model.blocks = blocks[: n_periods * n_estimated]
                longer_peaks.append(
                    _estimate_step_peaks(config, module, data.task, example, temporary_factor)
                )
            peaks = [
                _extrapolate(first, second, third, layers / n_estimated)
                for first, second, third in zip(peaks, *longer_peaks, strict=True)
            ]
    return peaks


def _extrapolate(first: int, second: int, third: int, n_periods: float) -> int:
    """Evaluate the parabola through the peaks of one, two and three periods at `n_periods`."""
    slope = second - first
    curvature = third - 2 * second + first
    return first + round(slope * (n_periods - 1) + curvature * (n_periods - 1) * (n_periods - 2) / 2)


def _estimate_step_peaks(
    config: Mapping[str, Any],
    module: LanguageModel,
    task: Any,
    example: Mapping[str, Tensor],
    temporary_factor: float,
) -> list[int]:
    """Return the peaks of `_estimate_phase_peaks` for a model of fake tensors, with all of its layers.

    Args:
        example: A batch of one row.
    """
    trainer = config["trainer"]
    model = module.model
    has_recurrent_cells = any(isinstance(part, nn.RNNBase) for part in model.modules())
    length = SHORT_WINDOW if has_recurrent_cells else task.length

    def make_batch(rows: int) -> dict[str, Tensor]:
        """Return as many tokens, in windows of `length`."""
        shape = (-(-rows * task.length // length), length)
        return {key: torch.empty(shape[: value.ndim], dtype=value.dtype) for key, value in example.items()}

    def compute_losses(rows: dict[str, Tensor]) -> Tensor:
        is_mixed = trainer["precision"] == "bf16-mixed"
        with torch.autocast("cpu", torch.bfloat16) if is_mixed else nullcontext():
            return cross_entropy(model(rows["tokens"], mask=make_batch_mask(rows)), rows["targets"])

    optimizer = module.optimizer(1)[0]
    with LiveMemoryCounter(model) as live:
        rows = make_batch(config["data"]["batch_size"] // trainer["devices"])
        forward, loss = live.measure_peak(lambda: compute_losses(rows).sum())
        backward, _ = live.measure_peak(loss.backward)
        del loss, rows
        gradients = live.current_bytes
        step, _ = live.measure_peak(optimizer.step)
        state = live.current_bytes - gradients
        model.zero_grad()
        rows = make_batch(min(config["data"]["val_batch_size"], task.val_windows))
        with torch.no_grad():
            validation, _ = live.measure_peak(lambda: compute_losses(rows))
    persistent = _count_bytes(model.parameters()) + _count_bytes(model.buffers()) + state
    persistent += gradients if trainer["devices"] > 1 else 0  # buffers of the all-reduce
    # Gradients are freed after the next step's forward pass, unless they are accumulated.
    accumulated = gradients if trainer["accumulate_grad_batches"] > 1 else 0
    persistent_bytes = (
        persistent + gradients,
        persistent + accumulated,
        persistent - state + gradients,
        persistent + gradients,
    )
    temporary_bytes = (forward, backward, step - gradients, validation - state)
    return [a + int(temporary_factor * b) for a, b in zip(persistent_bytes, temporary_bytes, strict=True)]


@contextmanager
def _disable_onednn() -> Iterator[None]:
    """Use torch's own recurrent cells: oneDNN's save about as much, without visible storages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unused processors
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _add_fused_fallback(kernel: Any) -> Any:
    """Wrap a kernel: if it cannot run here, save inputs and outputs, as any other fused kernel does."""

    def call_kernel(inputs: AttentionInputs) -> AttentionOutput:
        try:
            return kernel(inputs)
        except (Unsupported, NotImplementedError):
            q, k, v = inputs[:3]
            out = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
            return AttentionOutput(out, lse=q.new_empty(q.shape[:3], dtype=torch.float32))

    return call_kernel


def _count_bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
