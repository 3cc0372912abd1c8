"""The attention layer: project, append to the cache, expand, attend, finish, merge. Everything else is a
part handed in.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import (
    Attended,
    AttentionInputs,
    Cache,
    Capabilities,
    Channel,
    Epilogue,
    Heads,
    Kernel,
    Mask,
    Normaliser,
    Rotary,
    Rotate,
    Score,
    State,
    Unsupported,
)
from attnlab.attention.costs import Costs
from attnlab.attention.masks.combine import every, refuse_answers_too_early
from attnlab.attention.past.forgetting import Forgetting
from attnlab.attention.past.past import Past
from attnlab.attention.positions import Positions
from attnlab.attention.selection import Blocks


@final
class Attention(Costs):
    """One attention layer over any heads, kernel, masks, scores, rotation and epilogue.

    Scores are q·k * multiplier * D^scale_exponent: -0.5 is Vaswani et al. 2017 (eq. 1), 0 unscaled, -1 1/D.
    `masks` and `scores` are mappings, applied in their order, so that several axes can each contribute one.
    `forgetting` adds to scores what depends on the tokens between; `selection` hides the blocks that a query
    does not choose; a `normaliser` stands in the place of the softmax. `lends_keys` publishes keys and
    values for later layers whose heads borrow them. `dropout` falls on attention weights, in training only.
    ValueError where the parts do not fit together.
    """

    def __init__(
        self,
        heads: Heads,
        kernel: Kernel,
        masks: Mapping[str, Mask] | None = None,
        scores: Mapping[str, Score] | None = None,
        scale_exponent: float = -0.5,
        rotary: Rotary | None = None,
        epilogue: Epilogue | None = None,
        forgetting: Forgetting | None = None,
        selection: Blocks | None = None,
        normaliser: Normaliser | None = None,
        lends_keys: bool = False,
        dropout: float = 0.0,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"attention dropout must lie in [0, 1), got {dropout}")
        self.heads = heads
        self.kernel = kernel
        self.rotary = rotary
        self.epilogue = epilogue
        self.forgetting = forgetting
        self.selection = selection
        self.dropout = dropout
        self.normaliser = normaliser
        for group, parts in (("masks", masks), ("scores", scores)):
            for name, part in (parts or {}).items():
                if not callable(part):
                    raise ValueError(
                        f"model.attention.{group}.{name} is {part!r}, which is no function: return the "
                        f"{group[:-1]} from its factory, or leave the part out with "
                        f"~model.attention.{group}.{name}"
                    )
        self.mask = every(*(masks or {}).values())
        self.scores = tuple((scores or {}).values())
        self.score_modules = nn.ModuleList(score for score in self.scores if isinstance(score, nn.Module))
        self.scale_exponent = scale_exponent
        self.scale = multiplier * heads.score_dim**scale_exponent
        of_heads = Capabilities.of(heads)
        of_epilogue = Capabilities.of(epilogue)
        self.looks_ahead = self.mask is None or Capabilities.of(self.mask).looks_ahead
        self.changes_with_length = Capabilities.of(rotary).changes_with_length
        self.heads_look_back = of_heads.looks_back
        self.epilogue_looks_back = of_epilogue.looks_back
        self.looks_back = bool(of_heads.looks_back or of_epilogue.looks_back or forgetting is not None)
        self.lends_keys = lends_keys
        self.borrows_keys = "keys" in of_heads.reads
        self.reads = of_heads.reads
        self.publishes = of_heads.publishes + ("keys",) * lends_keys
        self.shows_values = "values" in of_epilogue.needs
        self.needs = tuple(need for need in of_epilogue.needs if need != "values")
        self.reweighs = of_epilogue.reweighs
        # heads may read their cache as it is where all that they are read through lets them
        seen_whole = selection is not None or (epilogue is not None and of_epilogue.per_feature)
        self.can_absorb = of_heads.can_absorb and not seen_whole
        if (lends_keys or self.borrows_keys) and forgetting is not None:
            raise Unsupported("keys that are shared between layers cannot be forgotten: use another score")
        if self.borrows_keys and lends_keys:
            raise Unsupported("heads that borrow keys have none of their own to lend")
        if self.shows_values and (self.borrows_keys or of_heads.normalises):
            raise Unsupported("these heads have no values of their own to leave out: use another epilogue")
        if rotary is not None:
            rotary(torch.zeros(1, 1))(torch.zeros(1, 1, 1, heads.rope_dim))  # an odd width fails here

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
        channel: Channel | None = None,
    ) -> Tensor:
        """x [B, T, M] -> [B, T, M]; the rest as of `attend`."""
        attended = self.attend(x_BTM, positions=positions, mask=mask, cache=cache, channel=channel)
        return self.heads.merge(attended.out)

    def attend(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
        channel: Channel | None = None,
        kernel: Kernel | None = None,
        need: Sequence[str] = (),
    ) -> Attended:
        """The layer up to the merge, in stages: project the new tokens, append their state to the cache,
        expand the whole state, attend, finish.

        `positions` [B or 1, T] default to 0..T-1, or go on from the cache; `mask` joins the design masks.
        `need=("weights",)` with another kernel is how attention maps are read.
        """
        if cache is not None and self.changes_with_length:
            raise Unsupported(
                "a rotation whose scaling changes with the length cannot be cached: use decode=none"
            )
        positions = Positions.of_pass(positions, cache, x_BTM)
        past = {"past": Past(positions, mask, cache)} if self.looks_back else {}
        q, new_state = self.project(x_BTM, positions.rotation(self.rotary), channel=channel, **past)
        epilogue_inputs: dict[str, Any] = {**past} if self.epilogue_looks_back else {}
        if self.shows_values:
            epilogue_inputs["values"] = self.heads.expand(new_state)[1]
        if self.forgetting is not None:
            new_state = (*new_state, self.forgetting.project(x_BTM, **past))
        state, keys = self._append(new_state, positions, cache, channel)
        q, k, v = self._expand(q, new_state, state)
        cache_needs: Sequence[str] = getattr(cache, "needs", ())
        inputs = self._kernel_inputs(q, k, v, positions, keys, mask, (*need, *self.needs, *cache_needs))
        attended = (kernel or self.kernel)(inputs)
        if cache_needs:
            cache.attended(attended.weights)  # type: ignore[union-attr]
        return self._finish(attended, x_BTM, epilogue_inputs)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, *, past: Past | None = None, channel: Channel | None = None
    ) -> tuple[Tensor, State]:
        """As of `Heads`, which are given what they ask for."""
        if not (self.heads_look_back or self.reads):
            return self.heads.project(x_BTM, rotate)
        given: dict[str, Any] = {"past": past} if self.heads_look_back else {}
        return self.heads.project(x_BTM, rotate, **given, **({"channel": channel} if self.reads else {}))

    def _append(
        self, new_state: State, positions: Positions, cache: Cache | None, channel: Channel | None
    ) -> tuple[State, Tensor]:
        """State and positions of all keys that the queries may see: the cache's, or those that an earlier
        layer lends.
        """
        past = len(cache) if cache is not None else 0
        if self.borrows_keys:
            if channel is None or "keys" not in channel:
                raise Unsupported("a layer that borrows keys needs an earlier one with lends_keys: true")
            state, keys = channel["keys"]
        else:
            state, keys = (
                (new_state, positions.of) if cache is None else cache.append(new_state, positions.of)
            )
        if self.lends_keys and channel is not None:
            channel["keys"] = state, keys
        if past and self.looks_ahead:
            consecutive = past if positions.consecutive else None
            refuse_answers_too_early(self.mask, positions.of, keys, self.heads.n_heads, consecutive)
        return state, keys

    def _expand(self, q: Tensor, new_state: State, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v; with `forgetting`, whose part of a state is its last member, with its features."""
        if self.forgetting is None:
            return q, *self.heads.expand(state)
        k, v = self.heads.expand(state[:-1])
        return *self.forgetting.beside(q, k, new_state[-1], state[-1], self.scale), v

    def _kernel_inputs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        keys_BS: Tensor,
        mask: Mask | None,
        need: Sequence[str],
    ) -> AttentionInputs:
        inputs = AttentionInputs(  # by position: half the time of keywords, in every step of decoding
            q,
            k,
            v,
            positions.of_queries,
            keys_BS.view(keys_BS.shape[0], 1, 1, keys_BS.shape[1]),
            self.scale,
            self.mask if mask is None else every(self.mask, mask),
            self.scores,
            self.normaliser,
            self.dropout if self.training else 0.0,
            need,
            positions.consecutive,
        )
        if self.selection is None:
            return inputs
        return inputs._replace(mask=every(inputs.mask, self.selection(inputs, positions.end)))

    def _finish(self, attended: Attended, x_BTM: Tensor, epilogue_inputs: dict[str, Any]) -> Attended:
        """The epilogue on the output, and on the weights where it reweighs."""
        if self.epilogue is None:
            return attended
        weights = attended.weights
        if weights is not None and self.reweighs:
            weights = self.epilogue(weights, attended.lse, x_BTM)
        out = self.epilogue(attended.out, attended.lse, x_BTM, **epilogue_inputs)
        return attended._replace(out=out, weights=weights)
