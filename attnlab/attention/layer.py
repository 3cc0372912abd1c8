"""The attention layer: project, append to the cache, expand, attend, apply the epilogue, merge.

Everything else is a part passed to its constructor.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import (
    AttentionInputs,
    AttentionOutput,
    Cache,
    Capabilities,
    Epilogue,
    Heads,
    Kernel,
    Mask,
    Normalizer,
    Rotary,
    Rotate,
    Score,
    ScoreMap,
    SharedTensors,
    State,
    Unsupported,
)
from attnlab.attention.costs import LayerCosts
from attnlab.attention.indexer import LOSS_NAME, Indexer
from attnlab.attention.masks.conjunction import combine_masks, require_no_missed_keys
from attnlab.attention.selection import BlockSelection
from attnlab.attention.stateful.forget_gate import ForgetGate
from attnlab.attention.stateful.recurrent_state import RecurrentState
from attnlab.attention.token_positions import TokenPositions


@final
class Attention(LayerCosts):
    """Attention layer over any heads, kernel, masks, scores, rotation and epilogue.

    Scores are q·k * multiplier * D^scale_exponent: -0.5 is Vaswani et al. 2017 (eq. 1), 0 unscaled, -1 1/D.

    Args:
        masks: mapping, applied in its order, so that several config axes can each contribute one; `scores`
            likewise.
        forgetting: adds a term to scores that depends on the tokens in between.
        selection: hides the blocks that a query does not select.
        score_maps: one at most, which replaces scores by those that it computes from queries and keys.
        normalizer: replaces the softmax.
        writes_shared_kv: writes keys and values for later layers with `SharedKVHeads`.
        dropout: of attention weights, in training only.

    Raises:
        ValueError: the parts do not fit together.
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
        forgetting: ForgetGate | None = None,
        selection: BlockSelection | None = None,
        score_maps: Mapping[str, ScoreMap] | None = None,
        normalizer: Normalizer | None = None,
        writes_shared_kv: bool = False,
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
        if score_maps is not None and len(score_maps) > 1:
            raise Unsupported(
                f"a layer has one score map, got {' and '.join(score_maps)}: use another position or score"
            )
        score_map = next(iter((score_maps or {}).values()), None)
        self.score_map = score_map
        self.normalizer = normalizer
        for group, parts in (("masks", masks), ("scores", scores), ("score_maps", score_maps)):
            for name, part in (parts or {}).items():
                if not callable(part):
                    raise ValueError(
                        f"model.attention.{group}.{name} is {part!r}, not a function: return the "
                        f"{group[:-1]} from its factory, or leave the part out with "
                        f"~model.attention.{group}.{name}"
                    )
        self.mask = combine_masks(*(masks or {}).values())
        self.scores = tuple((scores or {}).values())
        self.score_modules = nn.ModuleList(score for score in self.scores if isinstance(score, nn.Module))
        self.scale_exponent = scale_exponent
        self.scale = multiplier * heads.score_dim**scale_exponent
        heads_capabilities = Capabilities.from_part(heads)
        epilogue_capabilities = Capabilities.from_part(epilogue)
        self.sees_future = self.mask is None or Capabilities.from_part(self.mask).sees_future
        self.changes_with_length = Capabilities.from_part(rotary).changes_with_length
        self.rotates_cached_keys = heads_capabilities.rotates_cached_keys
        self.heads_are_stateful = heads_capabilities.lookback
        self.epilogue_is_stateful = epilogue_capabilities.lookback
        map_capabilities = Capabilities.from_part(score_map)
        self.query_lookback = int(map_capabilities.lookback)
        self.score_map_has_state = map_capabilities.has_token_state
        states = (forgetting, score_map if self.score_map_has_state else None, self.indexer)
        self.token_state_parts = tuple(part for part in states if part is not None)
        self.auxiliary_losses = {} if self.indexer is None else {LOSS_NAME: self.indexer.loss_weight}
        self.lookback = bool(
            heads_capabilities.lookback
            or epilogue_capabilities.lookback
            or self.query_lookback
            or forgetting is not None
            or self.score_map_has_state
        )
        self.writes_shared_kv = writes_shared_kv
        self.reads_shared_kv = "keys" in heads_capabilities.reads_shared
        self.reads_shared = heads_capabilities.reads_shared
        self.writes_shared = heads_capabilities.writes_shared + ("keys",) * writes_shared_kv
        self.passes_values = "values" in epilogue_capabilities.needs
        self.needs = tuple(need for need in epilogue_capabilities.needs if need != "values")
        self.reweights = epilogue_capabilities.reweights
        # heads may read their cache unexpanded if selection, score map and epilogue allow it
        needs_expanded = selection is not None or score_map is not None
        needs_expanded |= epilogue is not None and epilogue_capabilities.per_feature
        self.can_absorb = heads_capabilities.can_absorb and not needs_expanded
        width = map_capabilities.width
        if width not in (None, heads.score_dim, heads.score_dim - heads.rope_dim):
            raise ValueError(
                f"{type(score_map).__name__} reads {width} features of queries that have {heads.score_dim}: "
                "set width of model.attention.score_maps to the width of a head"
            )
        if (writes_shared_kv or self.reads_shared_kv) and self.token_state_parts:
            owner = type(self.token_state_parts[0]).__name__
            raise Unsupported(
                f"keys shared between layers lack what {owner} stores of each token: use another score, "
                "position or mask, or layers=uniform"
            )
        if self.indexer is not None and Capabilities.from_part(normalizer).is_signed:
            raise Unsupported("an indexer learns weights of at least 0: use normalizer=softmax")
        if score_map is not None and forgetting is not None:
            raise Unsupported("a score map does not support a forget gate: use another score")
        if writes_shared_kv and heads_capabilities.rotates_cached_keys:
            raise Unsupported(
                "layers share keys with RoPE, and these heads keep them without: use heads=mha, gqa, mqa, "
                "single or tied_qkv"
            )
        if self.reads_shared_kv and writes_shared_kv:
            raise Unsupported(
                "heads that read shared keys cannot also write them: set writes_shared_kv: false"
            )
        if self.passes_values and (self.reads_shared_kv or heads_capabilities.normalizes_heads):
            raise Unsupported("this epilogue needs heads with their own values: use another epilogue")
        if rotary is not None:
            rotary(torch.zeros(1, 1))(torch.zeros(1, 1, 1, heads.rope_dim))  # fails early on an odd width

    @property
    def indexer(self) -> Indexer | None:
        """The indexer of the selection, if it has one."""
        return None if self.selection is None else self.selection.indexer

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
        shared_tensors: SharedTensors | None = None,
        auxiliary_losses: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Map x [B, T, M] to [B, T, M]; the other arguments are those of `attend`."""
        output = self.attend(
            x_BTM,
            positions=positions,
            mask=mask,
            cache=cache,
            shared_tensors=shared_tensors,
            auxiliary_losses=auxiliary_losses,
        )
        return self.heads.merge(output.out)

    def attend(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
        shared_tensors: SharedTensors | None = None,
        auxiliary_losses: dict[str, Tensor] | None = None,
        kernel: Kernel | None = None,
        need: Sequence[str] = (),
    ) -> AttentionOutput:
        """Run the layer up to the merge: project, append to the cache, expand, attend, apply the epilogue.

        Args:
            positions: [B or 1, T]; by default 0..T-1, or continuing from the cache.
            mask: data mask, combined with the design masks.
            auxiliary_losses: the layer adds its own to the entries; None computes none.
            kernel: replaces the layer's kernel; with `need=("weights",)` it computes attention maps.

        Raises:
            Unsupported: a cache is given and the rotation changes with the length.
        """
        if cache is not None and self.changes_with_length:
            raise Unsupported(
                "RoPE scaling that changes with the sequence length cannot be cached: use decode=none"
            )
        if self.score_map_has_state and cache is not None and Capabilities.from_part(cache).leaves_gaps:
            raise Unsupported(
                f"{type(self.score_map).__name__} needs all tokens between a key and a query, and this cache "
                "drops some: use decode=dynamic"
            )
        positions = TokenPositions.resolve_positions(positions, cache, x_BTM)
        stateful_inputs = {"recurrent_state": RecurrentState(positions, mask, cache)} if self.lookback else {}
        q, new_state = self.project(
            x_BTM, positions.get_rotation(self.rotary), shared_tensors=shared_tensors, **stateful_inputs
        )
        epilogue_inputs: dict[str, Any] = {**stateful_inputs} if self.epilogue_is_stateful else {}
        if self.passes_values:
            epilogue_inputs["values"] = self.heads.expand(new_state)[1]
        index_queries = None
        if self.forgetting is not None:
            new_state = (*new_state, self.forgetting.project(x_BTM, **stateful_inputs))
        if self.score_map_has_state:
            new_state = (*new_state, self.score_map.project(x_BTM, **stateful_inputs))  # type: ignore[union-attr]
        if self.indexer is not None:
            index_queries, index_keys = self.indexer.project(x_BTM, positions.get_rotation(self.rotary))
            new_state = (*new_state, index_keys)
        state, keys = self._append_to_cache(new_state, positions, cache, shared_tensors)
        n_head_members = len(state) - len(self.token_state_parts)
        state, token_states = state[:n_head_members], state[n_head_members:]
        q, k, v = self._expand_state(q, state, positions, keys)
        if self.forgetting is not None:
            new_sums = new_state[n_head_members]
            q, k = self.forgetting.append_features(q, k, new_sums, token_states[0], self.scale)
        cache_needs: Sequence[str] = getattr(cache, "needs", ())
        inputs = self._make_kernel_inputs(q, k, v, positions, keys, mask, (*need, *self.needs, *cache_needs))
        if self.query_lookback:
            inputs = inputs._replace(earlier_q=self._find_earlier_queries(q, **stateful_inputs))
        if self.score_map_has_state:
            inputs = inputs._replace(token_state=token_states[0])
        if self.selection is not None:
            index_scores = None
            if self.indexer is not None and index_queries is not None:
                index_scores = self.indexer.compute_scores(index_queries, token_states[-1])
                if auxiliary_losses is not None:
                    is_real = RecurrentState(positions, mask, cache).find_real_tokens(len(x_BTM))
                    loss = self.indexer.compute_loss(index_scores, inputs, is_real)
                    auxiliary_losses[LOSS_NAME] = auxiliary_losses.get(LOSS_NAME, 0.0) + loss
            selected = self.selection(inputs, positions.end, index_scores)
            inputs = inputs._replace(mask=combine_masks(inputs.mask, selected))
        output = (kernel or self.kernel)(inputs)
        if cache_needs:
            cache.update_from_attention(output.weights)  # type: ignore[union-attr]
        return self._apply_epilogue(output, x_BTM, epilogue_inputs)

    def project(
        self,
        x_BTM: Tensor,
        rotate: Rotate,
        *,
        recurrent_state: RecurrentState | None = None,
        shared_tensors: SharedTensors | None = None,
    ) -> tuple[Tensor, State]:
        """Call `Heads.project` with the optional inputs that the heads declare."""
        if not (self.heads_are_stateful or self.reads_shared):
            return self.heads.project(x_BTM, rotate)
        optional_inputs: dict[str, Any] = (
            {"recurrent_state": recurrent_state} if self.heads_are_stateful else {}
        )
        return self.heads.project(
            x_BTM,
            rotate,
            **optional_inputs,
            **({"shared_tensors": shared_tensors} if self.reads_shared else {}),
        )

    def _append_to_cache(
        self,
        new_state: State,
        positions: TokenPositions,
        cache: Cache | None,
        shared_tensors: SharedTensors | None,
    ) -> tuple[State, Tensor]:
        """State and positions of all keys that the queries may see.

        They are the cache's, or those of an earlier layer.
        """
        n_past = len(cache) if cache is not None else 0
        if self.reads_shared_kv:
            if shared_tensors is None or "keys" not in shared_tensors:
                raise Unsupported(
                    "a layer that reads shared keys needs an earlier layer with writes_shared_kv: true"
                )
            state, keys = shared_tensors["keys"]
        else:
            state, keys = (
                (new_state, positions.position_ids)
                if cache is None
                else cache.append(new_state, positions.position_ids)
            )
        if self.writes_shared_kv and shared_tensors is not None:
            shared_tensors["keys"] = state, keys
        if n_past and self.sees_future:
            consecutive_past = n_past if positions.is_consecutive else None
            require_no_missed_keys(
                self.mask, positions.position_ids, keys, self.heads.n_heads, consecutive_past
            )
        return state, keys

    def _expand_state(
        self, q: Tensor, state: State, positions: TokenPositions, keys_BS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v."""
        rotations: tuple[Rotate, ...] = ()
        if self.rotates_cached_keys and self.rotary is not None:
            keys_are_new = keys_BS is positions.position_ids  # layers share the rotation of new tokens
            rotations = (positions.get_rotation(self.rotary) if keys_are_new else self.rotary(keys_BS),)
        return q, *self.heads.expand(state, *rotations)

    def _find_earlier_queries(self, q_BHTD: Tensor, recurrent_state: RecurrentState) -> Tensor:
        """Return the queries that precede q; the last ones are carried."""
        tokens = q_BHTD.transpose(1, 2)
        extended = recurrent_state.prepend_earlier("queries", tokens.flatten(2), self.query_lookback)
        return extended[:, : self.query_lookback].unflatten(2, tokens.shape[2:]).transpose(1, 2)

    def _make_kernel_inputs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: TokenPositions,
        keys_BS: Tensor,
        mask: Mask | None,
        need: Sequence[str],
    ) -> AttentionInputs:
        inputs = AttentionInputs(  # positional: half the time of keywords, in every decoding step
            q,
            k,
            v,
            positions.q_idx,
            keys_BS.view(keys_BS.shape[0], 1, 1, keys_BS.shape[1]),
            self.scale,
            self.mask if mask is None else combine_masks(self.mask, mask),
            self.scores,
            self.normalizer,
            self.dropout if self.training else 0.0,
            need,
            positions.is_consecutive,
        )
        return inputs if self.score_map is None else inputs._replace(score_map=self.score_map)

    def _apply_epilogue(
        self, attended: AttentionOutput, x_BTM: Tensor, epilogue_inputs: dict[str, Any]
    ) -> AttentionOutput:
        """Apply the epilogue to the output, and to the weights if it reweights them."""
        if self.epilogue is None:
            return attended
        weights = attended.weights
        if weights is not None and self.reweights:
            weights = self.epilogue(weights, attended.lse, x_BTM)
        out = self.epilogue(attended.out, attended.lse, x_BTM, **epilogue_inputs)
        return attended._replace(out=out, weights=weights)
