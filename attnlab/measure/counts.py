"""What a generated token costs, counted in a model that runs and by formula: keys and values projected,
query-key products, FLOPs, bytes kept and read, bytes saved for backward.

The counts must equal the formulas (our tests ask). Surprising: a model without a cache projects N (N + 1) / 2
tokens to make N, so for 1000 tokens "500 times fewer projections" is a count, and not a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.contracts import Attended, AttentionInputs, Cache, Kernel
from attnlab.attention.layer import Attention
from attnlab.measure.size import reference_kernel, saved_for_backward
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer


@dataclass(frozen=True)
class Cost:
    """Of a whole generation. `projections` and `products` are per layer (and products per head); `read` are
    the bytes of keys and values that attention read in the last step, all layers.
    """

    projections: int
    products: int
    flops: int
    read: int


def counted(
    model: Transformer, prompt_BT: Tensor, new_tokens: int, make_cache: Callable[..., Cache] | None
) -> Cost:
    """Counts while generating, over the eager reference; FLOPs are those of matrix products, by torch."""
    layers = [block.mixer for block in model.blocks]
    assert all(isinstance(layer, Attention) for layer in layers), "counts are of attention"
    projections = [0] * len(layers)
    products = [0] * len(layers)
    reads = [0] * len(layers)

    def watched(n: int, kernel: Kernel) -> Kernel:
        def watching(inputs: AttentionInputs) -> Attended:
            products[n] += inputs.q.shape[2] * inputs.k.shape[2]
            reads[n] = _distinct_bytes(inputs.k, inputs.v)
            return kernel(inputs)

        return watching

    def passed(n: int) -> Callable[..., None]:
        def passing(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            projections[n] += given[0].shape[1]

        return passing

    with reference_kernel(model), FlopCounterMode(display=False) as counter:
        hooks = [
            layer.heads.projection.register_forward_pre_hook(passed(n)) for n, layer in enumerate(layers)
        ]
        for n, layer in enumerate(layers):
            layer.kernel = watched(n, layer.kernel)
        try:
            Decoder(model, make_cache).generate(prompt_BT, new_tokens)
        finally:
            for hook in hooks:
                hook.remove()
    assert len(set(projections)) == len(set(products)) == 1, "layers differ"
    return Cost(projections[0], products[0], counter.get_total_flops(), sum(reads))


def formula(model: Transformer, batch: int, prompt: int, new_tokens: int, cached: bool) -> Cost:
    """The same on paper, for caches that drop nothing: with P tokens of prompt, N new ones and a cache
    P + N - 1 projections, P² + (P+1) + ... + (P+N-1) products; without, sums of all lengths and squares.
    """
    steps = passes(prompt, new_tokens, cached)
    last_held = steps[-1][1]
    layers = [block.mixer for block in model.blocks]
    inner = sum(
        weight.numel()
        for block in model.blocks
        for part in (block.ffn, getattr(block.mixer, "epilogue", None) or nn.Identity())
        for weight in part.parameters()
        if weight.ndim == 2
    )
    flops = 0
    for n, (new, held) in enumerate(steps):
        stepping = cached and n > 0
        flops += 2 * batch * (new * inner + model.head.weight.numel())
        flops += batch * sum(
            layer.flops(new, held, absorbed=stepping and layer.can_absorb) for layer in layers
        )
    size = model.embedding.weight.element_size()
    stepping = cached and len(steps) > 1
    widths = [layer.read_width(absorbed=stepping and layer.can_absorb) for layer in layers]
    read = batch * last_held * size * sum(widths)
    return Cost(sum(new for new, _ in steps), sum(new * held for new, held in steps), flops, read)


def passes(prompt: int, new_tokens: int, cached: bool) -> list[tuple[int, int]]:
    """(queries, keys) of every forward pass of a generation."""
    if cached:
        return [(prompt, prompt)] + [(1, prompt + n) for n in range(1, new_tokens)]
    return [(prompt + n, prompt + n) for n in range(new_tokens)]


def bytes_per_step(model: Transformer, held: int) -> dict[str, int]:
    """Bytes of a cached step with `held` keys, batch 1: all weights that a token passes, and what the caches
    hold. The roofline of decoding is their sum over the bandwidth.
    """
    outside = {id(model.embedding.weight)} - {id(model.head.weight)}  # one row of the embedding is read
    if model.positions is not None:
        outside |= {id(weight) for weight in model.positions.parameters()}
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in outside)
    return {"weights": weights, "cache": held * model.state_size()}


def saved_by_length(layer: nn.Module, dim: int, lengths: Sequence[int]) -> list[int]:
    """Bytes that one layer keeps for its backward pass, batch 1, at every length; exact."""
    saved = []
    for length in lengths:
        x = torch.zeros(1, length, dim, requires_grad=True)

        def loss(x: Tensor = x) -> Tensor:
            return layer(x).sum()

        saved.append(saved_for_backward(loss, layer))
    return saved


def _distinct_bytes(k: Tensor, v: Tensor) -> int:
    """Of both, or of the larger where one is a view of the other."""
    sizes = [part.numel() * part.element_size() for part in (k, v)]
    within = k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() and k.data_ptr() == v.data_ptr()
    return max(sizes) if within else sum(sizes)
