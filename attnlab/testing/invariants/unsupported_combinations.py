"""Declared combinations of shipped axis values that do not work together.

The declarations are strict: an invariant declared here fails if it passes, as when a kernel or layer falls
back silently.
"""

from typing import NamedTuple


class UnsupportedCombination(NamedTuple):
    """Invariants that are unsupported, with the reason, for variants that make all these choices."""

    choices: tuple[str, ...]
    invariants: tuple[str, ...]
    reason: str


BUILD_INVARIANTS = ("builds",)
DECODING_INVARIANTS = ("cache", "model_cache", "cache_reorder")
GRADIENT_INVARIANTS = (
    "context",
    "fully_masked_rows_are_zero",
    "trains",
    "measurements_succeed",
    "gradients",
    "parameters",
    "training_mode",
)

POSITION_SCORE_MAPS = ("position=cope", "position=path")
SCORE_MAPS = (*POSITION_SCORE_MAPS, "score=multi_token")
HEADS_WITHOUT_SEPARATE_KV = ("mla", "gla", "gta", "k_eq_v", "tpa", "differential", "tied_qkv")
NON_SOFTMAX_NORMALIZERS = ("off_by_one", "softpick", "sigmoid", "talking")
UNSUPPORTED_COMBINATIONS = (
    UnsupportedCombination(
        ("kernel=sdpa", "score=softcap"), BUILD_INVARIANTS, "sdpa supports only additive scores"
    ),
    UnsupportedCombination(
        ("kernel=sdpa", "score=log_length"), BUILD_INVARIANTS, "sdpa supports only additive scores"
    ),
    UnsupportedCombination(("kernel=sdpa", "epilogue=sinks"), BUILD_INVARIANTS, "sdpa does not return lse"),
    *(
        UnsupportedCombination(
            (f"kernel={kernel}", f"normalizer={other}"), BUILD_INVARIANTS, f"{kernel} supports only softmax"
        )
        for kernel in ("sdpa", "flex")
        for other in NON_SOFTMAX_NORMALIZERS
    ),
    *(
        UnsupportedCombination(
            (f"normalizer={other}", "epilogue=sinks"),
            BUILD_INVARIANTS,
            "lse is defined only for softmax weights",
        )
        for other in NON_SOFTMAX_NORMALIZERS
    ),
    *(
        UnsupportedCombination(
            (f"kernel={kernel}", score_map), BUILD_INVARIANTS, f"{kernel} supports no score map"
        )
        for kernel in ("sdpa", "flex")
        for score_map in SCORE_MAPS
    ),
    *(
        UnsupportedCombination((position, score), BUILD_INVARIANTS, reason)
        for position in POSITION_SCORE_MAPS
        for score, reason in (
            ("score=forget", "queries and keys have more features"),
            ("score=multi_token", "a layer has one score map"),
        )
    ),
    *(
        UnsupportedCombination(
            (mask, "normalizer=talking"), BUILD_INVARIANTS, "an indexer learns no negative weights"
        )
        for mask in ("mask=indexed_tokens", "mask=indexed_blocks")
    ),
    UnsupportedCombination(
        ("kernel=sdpa", "score=ssmax"), BUILD_INVARIANTS, "sdpa supports only additive scores"
    ),
    UnsupportedCombination(
        ("heads=tied_qkv", "convolution=kv"),
        BUILD_INVARIANTS,
        "one projection has no separate keys and values",
    ),
    *(
        UnsupportedCombination(
            ("heads=differential", f"epilogue={epilogue}"),
            BUILD_INVARIANTS,
            "nothing of the first token is left to normalize",
        )
        for epilogue in ("exclusive", "exclusive_gate")
    ),
    UnsupportedCombination(
        ("heads=differential", "epilogue=convolved"), BUILD_INVARIANTS, "a map's values are twice as wide"
    ),
    UnsupportedCombination(("kernel=flex",), GRADIENT_INVARIANTS, "flex has no backward pass on a CPU"),
    *(
        UnsupportedCombination(
            (f"heads={heads}", "score=qk_norm"),
            BUILD_INVARIANTS,
            "latent heads have no per-head keys before RoPE",
        )
        for heads in ("mla", "gla")
    ),
    UnsupportedCombination(("heads=gta", "score=qk_norm"), BUILD_INVARIANTS, "keys are values too"),
    UnsupportedCombination(
        ("heads=tpa", "score=qk_norm"),
        BUILD_INVARIANTS,
        "RoPE applies to factors, before there are keys to normalize",
    ),
    *(
        UnsupportedCombination(
            (f"heads={heads}", f"values={values}"), BUILD_INVARIANTS, "they have no separate values to mix"
        )
        for heads in HEADS_WITHOUT_SEPARATE_KV
        for values in ("residual", "embedding")
    ),
    *(
        UnsupportedCombination(
            (f"heads={heads}", "keys=offset"), BUILD_INVARIANTS, "they have no separate keys to shift"
        )
        for heads in HEADS_WITHOUT_SEPARATE_KV
    ),
    UnsupportedCombination(
        ("heads=differential", "epilogue=gate"),
        BUILD_INVARIANTS,
        "a map's values are twice as wide as its gate",
    ),
    *(
        combination
        for heads in ("mla", "gla")
        for combination in (
            UnsupportedCombination(
                (f"heads={heads}", "mask=full"), ("absorbed_heads",), "a full mask cannot be decoded in steps"
            ),
            UnsupportedCombination(
                (f"heads={heads}", "position=rope_dynamic_ntk"),
                ("absorbed_heads",),
                "cached keys with RoPE applied become outdated",
            ),
        )
    ),
    *(
        UnsupportedCombination(
            (f"model={cell}",),
            (*DECODING_INVARIANTS, "model_left_padding", "state_size", "left_padding", "packed_documents"),
            "it caches no keys",
        )
        for cell in ("lstm", "gru")
    ),
    UnsupportedCombination(("mask=full",), DECODING_INVARIANTS, "a full mask cannot be decoded in steps"),
    UnsupportedCombination(
        ("position=rope_dynamic_ntk",),
        (*DECODING_INVARIANTS, "state_size"),
        "cached keys with RoPE applied become outdated",
    ),
)


def find_unsupported_combination(invariant: str, choices: frozenset[str]) -> UnsupportedCombination | None:
    """Find the declaration that covers an invariant and these choices, if any."""
    return next(
        (
            combination
            for combination in UNSUPPORTED_COMBINATIONS
            if invariant in combination.invariants and choices.issuperset(combination.choices)
        ),
        None,
    )
