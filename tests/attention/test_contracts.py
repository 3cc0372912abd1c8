"""What parts declare is true, silence means what the contract says, and parts of one's own need no more."""

import inspect
import textwrap
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from attnlab.attention import contracts
from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache, rolling
from attnlab.attention.contracts import Capabilities, Unsupported, declares
from attnlab.attention.epilogue import Gate, Sinks
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks import combine, data
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.prefix import prefix
from attnlab.attention.masks.window import window
from attnlab.attention.positions import Positions
from attnlab.attention.rotary import Rope, identity
from attnlab.attention.scaling import DynamicNtk, Llama3, Ntk, Yarn
from attnlab.model.recurrent import Recurrent

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
        for mask in (causal, prefix(3), window(3), data.real, data.padding(torch.ones(1)))
    ),
    *((contracts.Cache, cache) for cache in (DynamicCache(), StaticCache(3), SlidingWindowCache(3))),
    *((contracts.Epilogue, epilogue) for epilogue in (Sinks(6), Gate(12, 6, 2))),
    (contracts.Rotary, Rope()),
    *((contracts.Mixer, mixer) for mixer in (Attention(HEADS["grouped"](), eager), Recurrent(nn.GRU, 12, 5))),
]
CONTRACTS = [value for value in vars(contracts).values() if getattr(value, "_is_protocol", False)]
CONTRACTS = [contract for contract in CONTRACTS if contract.__module__ == contracts.__name__]


def name_of(part):
    """For the ids of tests."""
    return getattr(part, "__name__", type(part).__name__)


def layer(**parts):
    return Attention(HEADS["grouped"](), parts.pop("kernel", eager), {"causal": causal}, **parts)


def required(contract):
    """What a part cannot leave out: all that the contract names."""
    return {name for name in {**vars(contract), **contract.__annotations__} if not name.startswith("_")}


@pytest.mark.parametrize(("contract", "part"), SHIPPED, ids=name_of)
def test_what_is_shipped_has_all_that_its_contract_names(contract, part):
    assert [name for name in required(contract) if not hasattr(part, name)] == []
    call = inspect.signature(contract.__call__).parameters.values() if "__call__" in vars(contract) else ()
    keywords = [parameter.name for parameter in call if parameter.kind is parameter.KEYWORD_ONLY]
    theirs = inspect.signature(getattr(part, "forward", part)).parameters if call else {}
    assert [name for name in keywords if name not in theirs] == []


def example(contract):
    """The code in its docstring."""
    lines = [line for line in contract.__doc__.splitlines() if line.startswith(8 * " ")]
    return textwrap.dedent("\n".join(lines))


@pytest.mark.parametrize("contract", CONTRACTS, ids=name_of)
def test_every_contract_has_an_example_that_runs(contract):
    names = {"nn": nn, "torch": torch, "eager": eager, "DynamicCache": DynamicCache, "Recurrent": Recurrent}
    before = {**names, "layer": layer(), "x": torch.zeros(1, 9, 12)}
    assert example(contract)
    exec(example(contract), before)


def test_heads_of_the_example_are_heads():
    names = {"nn": nn}
    exec(example(contracts.Heads), names)
    x, cache = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0)), DynamicCache()
    own = Attention(names["Own"](), sdpa, {"causal": causal}, rotary=Rope())
    parts = torch.cat([own(x[:, :5], cache=cache), own(x[:, 5:], cache=cache)], 1)
    torch.testing.assert_close(parts, own(x))
    assert cache.live_bytes() == 2 * 9 * own.state_size()


def test_capabilities_are_those_that_a_part_declares_and_else_the_defaults():
    class Own:
        looks_back = 3

        @property
        def needs(self):
            return ("lse",)

        def carried_size(self):
            return 7

    own, silent = Capabilities.of(Own()), Capabilities.of(None)
    assert silent == Capabilities()
    assert silent.carried_size() == silent.flops(2, 3, 5) == 0
    assert (own.looks_back, own.needs, own.carried_size()) == (3, ("lse",), 7)
    assert own._replace(looks_back=0, needs=(), carried_size=silent.carried_size) == silent


# --- masks ---

MASKS = {
    "causal": causal,
    "window": window(3, keep=2),
    "prefix": prefix(4),
    "real": data.real,
    "documents": data.documents(torch.zeros(1, 99, dtype=torch.long)),
    "causal and real": combine.every(causal, data.real),
    "prefix and real": combine.every(prefix(4), data.real),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_looks_ahead_where_it_says_so(name):
    where = torch.arange(11)[None]
    assert Capabilities.of(MASKS[name]).looks_ahead is combine.looks_ahead(MASKS[name], where, where, 1)


@pytest.mark.parametrize("heads", [(0, 1, 2, 3), (3,)], ids=["all heads", "the last head"])
def test_a_mask_that_looks_ahead_is_looked_at_in_every_step(heads):
    @declares(looks_ahead=True)
    def ahead(b, h, q_pos, kv_pos):
        return kv_pos <= q_pos + torch.isin(h, torch.tensor(heads))

    own, x = Attention(HEADS["grouped"](), eager, {"own": ahead}), torch.zeros(1, 5, 12)
    cache = DynamicCache()
    own(x, cache=cache)
    with pytest.raises(Unsupported, match="should have seen these later ones"):
        own(x[:, :1], cache=cache)


def test_what_a_mask_is_within_joins_and_makes_the_rolling_cache():
    both = combine.every(window(5), window(3, keep=1), causal)
    assert Capabilities.of(both).within == (3, 1)
    assert Capabilities.of(combine.every(causal, data.real)).within is None
    cache = rolling(Attention(HEADS["grouped"](), eager, {"own": both}))
    assert (cache.size, cache.keep) == (3, 1)
    assert type(rolling(Attention(HEADS["grouped"](), eager, {"own": causal}))) is DynamicCache


# --- rotations ---


def test_equal_rotations_share_their_tables_and_others_do_not():
    where = Positions.following(0, 7, torch.device("cpu"))
    shared = where.rotation(Rope(scaling=Yarn(4.0, 16)))
    assert where.rotation(Rope(scaling=Yarn(4.0, 16))) is shared
    for other in (
        Rope(),
        Rope(scaling=Yarn(2.0, 16)),
        Rope(500.0, scaling=Yarn(4.0, 16)),
        Rope(fraction=0.5),
    ):
        assert where.rotation(other) is not shared


def test_a_rotation_says_whether_it_changes_with_the_length():
    assert not any(Rope(scaling=scaling).changes_with_length for scaling in (None, Ntk(2.0), Llama3(2.0, 8)))
    following = layer(rotary=Rope(scaling=DynamicNtk(8)))
    assert following.changes_with_length
    with pytest.raises(Unsupported, match="cannot be cached"):
        following(torch.zeros(1, 3, 12), cache=DynamicCache())


def test_a_rotation_and_a_scaling_may_be_plain_functions():
    @declares(changes_with_length=True)
    def stretched(frequencies, base, positions):
        return frequencies / positions.amax().clamp(min=1), 1.0

    @declares(changes_with_length=True)
    def turning(positions):
        return Rope()(positions)

    x = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        layer_like(x, rotary=lambda positions: Rope()(positions)), layer_like(x, rotary=Rope())
    )
    assert torch.equal(layer_like(x, rotary=lambda positions: identity), layer_like(x))
    assert layer(rotary=Rope(scaling=stretched)).changes_with_length
    assert layer(rotary=turning).changes_with_length
    assert not layer(rotary=lambda positions: identity).changes_with_length


def layer_like(x, **parts):
    """The output of a layer with the same weights each time."""
    torch.manual_seed(0)
    return layer(**parts)(x)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Ntk(0.5),
        lambda: Yarn(2.0, 8, fast=1.0, slow=2.0),
        lambda: Llama3(2.0, 0),
        lambda: DynamicNtk(0),
    ],
)
def test_scalings_refuse_what_makes_no_sense(bad):
    with pytest.raises(ValueError, match="needs"):
        bad()


# --- epilogues, scores, caches ---


def test_an_epilogue_that_says_nothing_needs_nothing_and_keeps_heads_from_absorbing():
    class Half(nn.Module):
        def forward(self, out, lse, x):
            assert lse is None
            return out / 2

    x = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer_like(x, epilogue=Half()), layer_like(x) / 2)
    weights = layer(epilogue=Half()).attend(x, need=("weights",)).weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 6, 6))
    given = {"none": None, "silent": Half(), "sinks": Sinks(6)}
    given |= {"gate": Gate(12, 6, 2), "per head": Gate(12, 6, 2, True)}
    absorbing = {
        name: Attention(HEADS["latent"](), eager, epilogue=own).can_absorb for name, own in given.items()
    }
    assert absorbing == {"none": True, "silent": False, "sinks": True, "gate": False, "per head": True}
    assert Capabilities.of(Half()).needs == ()


def test_a_kernel_names_the_score_that_it_cannot_have_module_or_function():
    class Doubled(nn.Module):
        def forward(self, score, b, h, q_pos, kv_pos):
            return 2 * score

    def tripled(score, b, h, q_pos, kv_pos):
        return 3 * score

    for score, name in ((Doubled(), "Doubled"), (tripled, "tripled")):
        with pytest.raises(Unsupported, match=f"not {name}: use kernel=eager"):
            layer(kernel=sdpa, scores={"own": score})(torch.zeros(1, 3, 12))


def test_caches_say_how_much_they_take_and_keep():
    said = {
        type(cache).__name__: (Capabilities.of(cache).room, Capabilities.of(cache).holds)
        for cache in (DynamicCache(), StaticCache(7), SlidingWindowCache(5, keep=2), object())
    }
    assert said == {
        "DynamicCache": (None, None),
        "StaticCache": (7, 7),
        "SlidingWindowCache": (None, 7),
        "object": (None, None),
    }


def test_a_rotation_that_holds_a_list_is_shared_with_itself_alone():
    @dataclass(frozen=True)
    class Listed:
        bases: list

        def __call__(self, positions):
            return Rope(self.bases[0])(positions)

    where, listed = Positions.following(0, 7, torch.device("cpu")), Listed([100.0])
    assert where.rotation(listed) is where.rotation(listed)
    assert where.rotation(listed) is not where.rotation(Listed([100.0]))
    x = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer_like(x, rotary=listed), layer_like(x, rotary=Rope(100.0)))
