"""The attention layer: project, append to the cache, expand, attend, finish, merge. Everything else is a
part handed in.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import (
    Attended,
    Cache,
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
    declared,
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
        self.looks_ahead: bool = self.mask is None or declared(self.mask, Mask, "looks_ahead")
        self.changes_with_length: bool = declared(rotary, Rotary, "changes_with_length")
        needs = declared(epilogue, Epilogue, "needs")
        self.needs: tuple[str, ...] = tuple(need for need in needs if need != "values")
        self.shows_values: bool = "values" in needs
        self.heads_look_back: float = declared(heads, Heads, "looks_back")
        self.epilogue_looks_back: float = declared(epilogue, Epilogue, "looks_back")
        self.looks_back = bool(self.heads_look_back or self.epilogue_looks_back or forgetting is not None)
        self.lends_keys, self.borrows_keys = lends_keys, "keys" in declared(heads, Heads, "reads")
        self.reads: tuple[str, ...] = declared(heads, Heads, "reads")
        self.publishes: tuple[str, ...] = declared(heads, Heads, "publishes") + ("keys",) * lends_keys
        if (lends_keys or self.borrows_keys) and forgetting is not None:
            raise Unsupported("keys that are shared between layers cannot be forgotten: use another score")
        if self.borrows_keys and lends_keys:
            raise Unsupported("heads that borrow keys have none of their own to lend")
        if self.shows_values and (self.borrows_keys or declared(heads, Heads, "normalises")):
            raise Unsupported("these heads have no values of their own to leave out: use another epilogue")
        self.reweighs: bool = declared(epilogue, Epilogue, "reweighs")
        per_feature = epilogue is not None and declared(epilogue, Epilogue, "per_feature")
        # whether the heads may read their cache as it is: what they are read through must let them
        seen_whole = per_feature or selection is not None
        self.can_absorb: bool = declared(heads, Heads, "can_absorb") and not seen_whole
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
        """The layer up to the merge. `positions` [B or 1, T] default to 0..T-1, or go on from the cache;
        `mask` joins the design masks. `need=("weights",)` with another kernel is how attention maps are
        read.
        """
        past = len(cache) if cache is not None else 0
        positions = Positions.of_pass(positions, cache, x_BTM)
        if cache is not None and self.changes_with_length:
            raise Unsupported(
                "a rotation whose scaling changes with the length cannot be cached: use decode=none"
            )
        behind = {"past": Past(positions, mask, cache)} if self.looks_back else {}
        q, state = self.project(x_BTM, positions.rotation(self.rotary), channel=channel, **behind)
        shown = {"values": self.heads.expand(state)[1]} if self.shows_values else {}
        if self.forgetting is not None:
            state = (*state, self.forgetting.project(x_BTM, **behind))
            new = state[-1]
        asked: Sequence[str] = getattr(cache, "needs", ())
        if self.borrows_keys:
            state, keys = _lent(channel)
        else:
            state, keys = (state, positions.of) if cache is None else cache.append(state, positions.of)
        if self.lends_keys and channel is not None:
            channel["keys"] = state, keys
        if past and self.looks_ahead:
            consecutive = past if positions.consecutive else None
            refuse_answers_too_early(self.mask, positions.of, keys, self.heads.n_heads, consecutive)
        if self.forgetting is None:
            k, v = self.heads.expand(state)
        else:
            k, v = self.heads.expand(state[:-1])
            q, k = self.forgetting.beside(q, k, new, state[-1], self.scale)
        q_pos = positions.of_queries
        kv_pos = keys.view(keys.shape[0], 1, 1, keys.shape[1])
        hiding = self.mask if mask is None else every(self.mask, mask)
        if self.selection is not None:
            hiding = every(hiding, self.selection(q, k, q_pos, kv_pos, hiding, positions.end))
        attended = (kernel or self.kernel)(
            q,
            k,
            v,
            q_pos=q_pos,
            kv_pos=kv_pos,
            mask=hiding,
            scores=self.scores,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            need=(*need, *self.needs, *asked),
            aligned=positions.consecutive,
            **({} if self.normaliser is None else {"normaliser": self.normaliser}),
        )
        if asked:
            cache.attended(attended.weights)  # type: ignore[union-attr]
        if self.epilogue is None:
            return attended
        weights = attended.weights
        if weights is not None and self.reweighs:
            weights = self.epilogue(weights, attended.lse, x_BTM)
        told = {**shown, **behind} if self.epilogue_looks_back else shown
        out = self.epilogue(attended.out, attended.lse, x_BTM, **told)
        return attended._replace(out=out, weights=weights)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, *, past: Past | None = None, channel: Channel | None = None
    ) -> tuple[Tensor, State]:
        """As of `Heads`, which are given what they ask for."""
        if not (self.heads_look_back or self.reads):
            return self.heads.project(x_BTM, rotate)
        behind: dict[str, Any] = {"past": past} if self.heads_look_back else {}
        return self.heads.project(x_BTM, rotate, **behind, **({"channel": channel} if self.reads else {}))


def _lent(channel: Channel | None) -> tuple[State, Tensor]:
    """State and positions of all keys of an earlier layer."""
    if channel is None or "keys" not in channel:
        raise Unsupported("a layer that borrows keys needs an earlier one with lends_keys: true")
    return channel["keys"]
