"""Contracts: shipped parts have all attributes, declarations are true, and custom parts need no more."""

import inspect
import textwrap
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from attnlab.attention import contracts
from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache, sliding_window_cache
from attnlab.attention.contracts import Capabilities, Unsupported, declare_capabilities
from attnlab.attention.epilogue import Gate, Sinks
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks import conjunction, data_masks
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.prefix import prefix
from attnlab.attention.masks.window import window
from attnlab.attention.rotary import Rope, identity_rotation
from attnlab.attention.rotary_scaling import DynamicNtk, Llama3, Ntk, Yarn
from attnlab.attention.token_positions import TokenPositions
from attnlab.model.recurrent import RecurrentMixer

HEADS = {
    "grouped": lambda: GroupedHeads(12, 6, 2, None, False, False),
    "latent": lambda: LatentHeads(12, 6, 5, 2, 4, False, False),
    "differential": lambda: DifferentialHeads(12, 6, 2, None, False, False),
}
SHIPPED = [
    *((contracts.Heads, make()) for make in HEADS.values()),
    *((contracts.Kernel, kernel) for kernel in (eager, sdpa, Flex())),
    *(
        (contracts.Mask, mask)
        for mask in (
            causal,
            prefix(3),
            window(3),
            data_masks.non_padding,
            data_masks.make_padding_mask(torch.ones(1)),
        )
    ),
    *((contracts.Cache, cache) for cache in (DynamicCache(), StaticCache(3), SlidingWindowCache(3))),
    *((contracts.Epilogue, epilogue) for epilogue in (Sinks(6), Gate(12, 6, 2))),
    (contracts.Rotary, Rope()),
    *(
        (contracts.Mixer, mixer)
        for mixer in (Attention(HEADS["grouped"](), eager), RecurrentMixer(nn.GRU, 12, 5))
    ),
]
CONTRACTS = [value for value in vars(contracts).values() if getattr(value, "_is_protocol", False)]
CONTRACTS = [contract for contract in CONTRACTS if contract.__module__ == contracts.__name__]


def get_part_name(part):
    """Test id of a part or contract."""
    return getattr(part, "__name__", type(part).__name__)


def make_layer(**parts):
    return Attention(HEADS["grouped"](), parts.pop("kernel", eager), {"causal": causal}, **parts)


def list_required_names(contract):
    """Names of all public members of a contract."""
    return {name for name in {**vars(contract), **contract.__annotations__} if not name.startswith("_")}


@pytest.mark.parametrize(("contract", "part"), SHIPPED, ids=get_part_name)
def test_shipped_part_has_all_attributes_of_its_contract(contract, part):
    assert [name for name in list_required_names(contract) if not hasattr(part, name)] == []
    call = inspect.signature(contract.__call__).parameters.values() if "__call__" in vars(contract) else ()
    keywords = [parameter.name for parameter in call if parameter.kind is parameter.KEYWORD_ONLY]
    part_parameters = inspect.signature(getattr(part, "forward", part)).parameters if call else {}
    assert [name for name in keywords if name not in part_parameters] == []


def extract_example(contract):
    """Code in the contract's docstring."""
    lines = [line for line in contract.__doc__.splitlines() if line.startswith(8 * " ")]
    return textwrap.dedent("\n".join(lines))


@pytest.mark.parametrize("contract", CONTRACTS, ids=get_part_name)
def test_contract_example_runs(contract):
    names = {
        "nn": nn,
        "torch": torch,
        "eager": eager,
        "DynamicCache": DynamicCache,
        "RecurrentMixer": RecurrentMixer,
    }
    namespace = {**names, "layer": make_layer(), "x": torch.zeros(1, 9, 12)}
    assert extract_example(contract)
    exec(extract_example(contract), namespace)


def test_example_heads_decode_like_the_full_pass():
    names = {"nn": nn}
    exec(extract_example(contracts.Heads), names)
    x, cache = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0)), DynamicCache()
    own = Attention(names["Own"](), sdpa, {"causal": causal}, rotary=Rope())
    parts = torch.cat([own(x[:, :5], cache=cache), own(x[:, 5:], cache=cache)], 1)
    torch.testing.assert_close(parts, own(x))
    assert cache.live_bytes() == 2 * 9 * own.state_size()


def test_capabilities_read_declarations_and_fill_in_defaults():
    class Own:
        lookback = 3

        @property
        def needs(self):
            return ("lse",)

        def carried_size(self):
            return 7

    declared, defaults = Capabilities.from_part(Own()), Capabilities.from_part(None)
    assert defaults == Capabilities()
    assert defaults.carried_size() == defaults.flops(2, 3, 5) == 0
    assert (declared.lookback, declared.needs, declared.carried_size()) == (3, ("lse",), 7)
    assert declared._replace(lookback=0, needs=(), carried_size=defaults.carried_size) == defaults


# --- masks ---

MASKS = {
    "causal": causal,
    "window": window(3, keep=2),
    "prefix": prefix(4),
    "real": data_masks.non_padding,
    "documents": data_masks.make_document_mask(torch.zeros(1, 99, dtype=torch.long)),
    "causal and real": conjunction.combine_masks(causal, data_masks.non_padding),
    "prefix and real": conjunction.combine_masks(prefix(4), data_masks.non_padding),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_sees_the_future_iff_declared(name):
    positions = torch.arange(11)[None]
    assert Capabilities.from_part(MASKS[name]).sees_future is conjunction.can_see_future(
        MASKS[name], positions, positions, 1
    )


@pytest.mark.parametrize("heads", [(0, 1, 2, 3), (3,)], ids=["all heads", "the last head"])
def test_mask_that_sees_the_future_is_checked_at_every_step(heads):
    @declare_capabilities(sees_future=True)
    def future_mask(b, h, q_idx, kv_idx):
        return kv_idx <= q_idx + torch.isin(h, torch.tensor(heads))

    attention, x = Attention(HEADS["grouped"](), eager, {"own": future_mask}), torch.zeros(1, 5, 12)
    cache = DynamicCache()
    attention(x, cache=cache)
    with pytest.raises(Unsupported, match="shows tokens of this chunk to an earlier token"):
        attention(x[:, :1], cache=cache)


def test_tightest_window_of_a_conjunction_sizes_the_cache():
    combined = conjunction.combine_masks(window(5), window(3, keep=1), causal)
    assert Capabilities.from_part(combined).visible_window == (3, 1)
    assert (
        Capabilities.from_part(conjunction.combine_masks(causal, data_masks.non_padding)).visible_window
        is None
    )
    cache = sliding_window_cache(Attention(HEADS["grouped"](), eager, {"own": combined}))
    assert (cache.size, cache.keep) == (3, 1)
    assert type(sliding_window_cache(Attention(HEADS["grouped"](), eager, {"own": causal}))) is DynamicCache


# --- rotations ---


def test_only_equal_rotations_share_tables():
    positions = TokenPositions.continue_from(0, 7, torch.device("cpu"))
    shared = positions.get_rotation(Rope(scaling=Yarn(4.0, 16)))
    assert positions.get_rotation(Rope(scaling=Yarn(4.0, 16))) is shared
    for other in (
        Rope(),
        Rope(scaling=Yarn(2.0, 16)),
        Rope(500.0, scaling=Yarn(4.0, 16)),
        Rope(fraction=0.5),
    ):
        assert positions.get_rotation(other) is not shared


def test_rotation_that_changes_with_length_rejects_a_cache():
    assert not any(Rope(scaling=scaling).changes_with_length for scaling in (None, Ntk(2.0), Llama3(2.0, 8)))
    attention = make_layer(rotary=Rope(scaling=DynamicNtk(8)))
    assert attention.changes_with_length
    with pytest.raises(Unsupported, match="cannot be cached"):
        attention(torch.zeros(1, 3, 12), cache=DynamicCache())


def test_rotation_and_scaling_may_be_plain_functions():
    @declare_capabilities(changes_with_length=True)
    def stretch_frequencies(frequencies, base, positions):
        return frequencies / positions.amax().clamp(min=1), 1.0

    @declare_capabilities(changes_with_length=True)
    def make_rotation(positions):
        return Rope()(positions)

    x = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        run_seeded_layer(x, rotary=lambda positions: Rope()(positions)), run_seeded_layer(x, rotary=Rope())
    )
    assert torch.equal(run_seeded_layer(x, rotary=lambda positions: identity_rotation), run_seeded_layer(x))
    assert make_layer(rotary=Rope(scaling=stretch_frequencies)).changes_with_length
    assert make_layer(rotary=make_rotation).changes_with_length
    assert not make_layer(rotary=lambda positions: identity_rotation).changes_with_length


def run_seeded_layer(x, **parts):
    """Output of a layer that has the same weights at each call."""
    torch.manual_seed(0)
    return make_layer(**parts)(x)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Ntk(0.5),
        lambda: Yarn(2.0, 8, fast=1.0, slow=2.0),
        lambda: Llama3(2.0, 0),
        lambda: DynamicNtk(0),
    ],
)
def test_scalings_reject_invalid_arguments(bad):
    with pytest.raises(ValueError, match="needs"):
        bad()


# --- epilogues, scores, caches ---


def test_epilogue_without_declarations_needs_nothing_and_prevents_absorption():
    class Half(nn.Module):
        def forward(self, out, lse, x):
            assert lse is None
            return out / 2

    x = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run_seeded_layer(x, epilogue=Half()), run_seeded_layer(x) / 2)
    weights = make_layer(epilogue=Half()).attend(x, need=("weights",)).weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 6, 6))
    epilogues = {"none": None, "silent": Half(), "sinks": Sinks(6)}
    epilogues |= {"gate": Gate(12, 6, 2), "per head": Gate(12, 6, 2, True)}
    can_absorb = {
        name: Attention(HEADS["latent"](), eager, epilogue=epilogue).can_absorb
        for name, epilogue in epilogues.items()
    }
    assert can_absorb == {"none": True, "silent": False, "sinks": True, "gate": False, "per head": True}
    assert Capabilities.from_part(Half()).needs == ()


def test_sdpa_error_names_the_unsupported_score():
    class Doubled(nn.Module):
        def forward(self, score, b, h, q_idx, kv_idx):
            return 2 * score

    def triple_score(score, b, h, q_idx, kv_idx):
        return 3 * score

    for score, name in ((Doubled(), "Doubled"), (triple_score, "triple_score")):
        with pytest.raises(Unsupported, match=f"not {name}: use kernel=eager"):
            make_layer(kernel=sdpa, scores={"own": score})(torch.zeros(1, 3, 12))


def test_caches_declare_capacity_and_max_cached_tokens():
    declared = {
        type(cache).__name__: (
            Capabilities.from_part(cache).capacity,
            Capabilities.from_part(cache).max_cached_tokens,
        )
        for cache in (DynamicCache(), StaticCache(7), SlidingWindowCache(5, keep=2), object())
    }
    assert declared == {
        "DynamicCache": (None, None),
        "StaticCache": (7, 7),
        "SlidingWindowCache": (None, 7),
        "object": (None, None),
    }


def test_unhashable_rotation_is_shared_only_with_itself():
    @dataclass(frozen=True)
    class Listed:
        bases: list

        def __call__(self, positions):
            return Rope(self.bases[0])(positions)

    token_positions, rotary = TokenPositions.continue_from(0, 7, torch.device("cpu")), Listed([100.0])
    assert token_positions.get_rotation(rotary) is token_positions.get_rotation(rotary)
    assert token_positions.get_rotation(rotary) is not token_positions.get_rotation(Listed([100.0]))
    x = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run_seeded_layer(x, rotary=rotary), run_seeded_layer(x, rotary=Rope(100.0)))
