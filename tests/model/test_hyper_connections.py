"""Hyper-connections equal plain float64 loops, start as the residual sum, and decode alike in all ways."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from test_generation import PROMPTS, generate_with_logits
from test_generation_layers import WAYS
from test_residual import M, T, make_model
from torch import nn

from attnlab.model import generation
from attnlab.model.block import Block
from attnlab.model.generation import Decoder
from attnlab.model.parametrization import Mup, map_scaling_rows
from attnlab.model.residual import HyperConnections, normalize_rows_and_columns
from attnlab.model.transformer import Mlp
from attnlab.testing.invariants.variant import randomize

N = 3  # streams
EPS = 0.3  # large enough to show
TOKENS = torch.tensor([[3, 1, 4, 1, 5]])
make_connection = partial(HyperConnections, n_streams=N, norm_eps=EPS)


def compute_sigmoid(number):
    return 1 / (1 + math.exp(-number))


def compute_map(weights, streams, first, count, gate):
    """Compute entries `first` to `first + count` of α φ norm(vec(x)) + b for one token's streams [n, M]."""
    phi, bias = weights.map.weight.detach().numpy(), weights.bias.detach().numpy()
    alpha = weights.gate[gate].item()
    entries = [streams[i, m] for i in range(N) for m in range(M)]
    size = math.sqrt(sum(entry**2 for entry in entries) / (N * M) + EPS)
    return [
        alpha * sum(phi[row, k] * entry / size for k, entry in enumerate(entries)) + bias[row]
        for row in range(first, first + count)
    ]


def compute_doubly_stochastic(logits, n_iterations=20):
    """Divide exp(logits) by its column sums, then by its row sums, in plain loops."""
    matrix = [[math.exp(logits[i * N + j]) for j in range(N)] for i in range(N)]
    for _ in range(n_iterations):
        columns = [sum(matrix[i][j] for i in range(N)) for j in range(N)]
        matrix = [[matrix[i][j] / columns[j] for j in range(N)] for i in range(N)]
        matrix = [[entry / sum(row) for entry in row] for row in matrix]
    return matrix


def read_by_loops(weights, stream):
    """Mix a stream [T, n, M] into [1, T, M]."""
    mixture = np.zeros((T, M))
    for t in range(T):
        for i, logit in enumerate(compute_map(weights, stream[t], 0, N, 0)):
            mixture[t] += compute_sigmoid(logit) * stream[t, i]
    return torch.from_numpy(mixture)[None]


def add_by_loops(weights, stream, output):
    """Mix the streams [T, n, M] and add the output [T, M]."""
    result = np.zeros((T, N, M))
    for t in range(T):
        post = compute_map(weights, stream[t], 0, N, 0)
        mixing = compute_doubly_stochastic(compute_map(weights, stream[t], N, N * N, 1))
        for i in range(N):
            result[t, i] = 2 * compute_sigmoid(post[i]) * output[t]
            for j in range(N):
                result[t, i] += mixing[i][j] * stream[t, j]
    return result


def test_hyper_connections_equal_their_equations():
    model = randomize(make_model(make_connection))
    x = model.embedding(TOKENS)[0].detach().numpy()
    stream = np.stack([x] * N, axis=1)
    for block in model.blocks:
        for connection, norm, part in (
            (block.mixer_reads, block.mixer_norm, block.mixer),
            (block.ffn_reads, block.ffn_norm, block.ffn),
        ):
            output = part(norm(read_by_loops(connection.reader.weights, stream)))[0].detach().numpy()
            stream = add_by_loops(connection.weights, stream, output)
    assert np.abs(stream - stream.mean(1, keepdims=True)).max() > 0.1  # streams differ
    last = read_by_loops(model.reads.weights, stream)
    torch.testing.assert_close(model(TOKENS), model.head(model.norm(last)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", [2, 4, 7])
def test_rows_and_columns_of_the_mixing_matrix_sum_to_one(n):
    logits = torch.randn(5, 3, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    matrix = normalize_rows_and_columns(logits, 20)
    assert (matrix > 0).all()
    torch.testing.assert_close(matrix.sum(-1), torch.ones(5, 3, n).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(matrix.sum(-2), torch.ones(5, 3, n).double(), rtol=0, atol=1e-4)
    columns = normalize_rows_and_columns(logits, 1).sum(-2)
    assert (columns - 1).abs().max() > 0.01  # one iteration is not enough


def test_mixing_matrix_of_huge_logits_is_finite():
    logits = torch.tensor([[500.0, -500.0], [400.0, -600.0]])
    torch.testing.assert_close(normalize_rows_and_columns(logits, 20), torch.full((2, 2), 0.5))


@pytest.mark.parametrize("n_streams", [2, 4])
def test_initial_model_without_dynamic_weights_is_the_residual_sum(n_streams):
    model = make_model(partial(HyperConnections, n_streams=n_streams))
    expected = make_model(None)(TOKENS)
    largest = (model(TOKENS) - expected).abs().max().item()
    assert 1e-6 < largest < 0.1 * expected.abs().max().item()  # the share of α
    for module in model.modules():
        if hasattr(module, "gate"):
            nn.init.zeros_(module.gate)
    # b_pre is set in float32, which scales streams by up to 1 + 1e-7, and a norm's epsilon shows it
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=1e-10)


def test_initial_weights_of_the_maps():
    connection = make_connection(M).double()
    nn.init.zeros_(connection.weights.gate)
    nn.init.zeros_(connection.reader.weights.gate)
    stream = torch.randn(1, T, N, M, dtype=torch.float64)
    torch.testing.assert_close(connection(stream), stream.mean(-2))
    output = torch.randn(1, T, M, dtype=torch.float64)
    torch.testing.assert_close(
        connection.add(stream, output), stream + output[..., None, :], rtol=0, atol=0.005
    )


def test_ffn_of_a_parallel_block_reads_the_stream_before_the_mixer():
    block = Block(nn.Identity(), Mlp(M, 7, False), nn.LayerNorm, M, 0.0, make_connection, parallel=True)
    block = randomize(block).double()
    block.mixer.forward = lambda x, **context: x / 2
    stream = torch.randn(2, T, N, M, dtype=torch.float64)
    mixer_output = block.mixer_norm(block.mixer_reads(stream)) / 2
    ffn_output = block.ffn(block.ffn_norm(block.ffn_reads(stream)))
    expected = block.ffn_reads.add(block.mixer_reads.add(stream, mixer_output), ffn_output)
    torch.testing.assert_close(block(stream), expected, rtol=0, atol=1e-13)


def test_shared_norm_is_rejected():
    options = {"parallel": True, "shared_norm": True}
    with pytest.raises(ValueError, match="leaves the FFN without HyperConnections of its own"):
        Block(nn.Identity(), Mlp(M, 7, False), nn.LayerNorm, M, 0.0, make_connection, **options)


@pytest.mark.parametrize(("option", "number"), [("n_streams", 1), ("n_iterations", 0)])
def test_too_few_streams_or_iterations_are_rejected(option, number):
    with pytest.raises(
        ValueError, match=f"model.residual.{option} must be at least {number + 1}, got {number}"
    ):
        HyperConnections(M, **{"n_streams": 4, option: number})


def test_muon_leaves_the_maps_to_adamw_and_mup_rejects_them():
    model = make_model(make_connection)
    rows = map_scaling_rows(model)
    assert all(rows[name].muon_lr is None for name in rows if ".map." in name)
    model.parametrization = Mup(base_dim=M)
    with pytest.raises(ValueError, match=r"parametrization=mup has no rule for .*map\.weight"):
        map_scaling_rows(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixing_weights_have_full_precision_in_narrow_dtypes(dtype):
    connection = randomize(make_connection(M)).to(dtype)
    post, mixing = connection.weights(torch.randn(1, T, N, M).to(dtype))
    assert post.dtype == mixing.dtype == torch.float32
    stream = torch.randn(1, T, N, M)
    with torch.autocast("cpu", torch.bfloat16):
        result = connection.float().add(stream, torch.randn(1, T, M, dtype=torch.bfloat16))
        read = connection(stream)
    assert result.dtype == read.dtype == torch.float32
    torch.testing.assert_close(read, connection(stream), rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_hyper_connections_give_equal_text_in_all_ways_of_decoding(prompts, way, monkeypatch):
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    model, (cache, compiled) = randomize(make_model(make_connection)), WAYS[way]
    tokens, logits = generate_with_logits(Decoder(model, cache, compile=compiled), prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)
