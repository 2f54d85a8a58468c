"""The bridge refuses what the kernels couldn't take: a ValueError that says what is wrong, never a stray read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from encoder_weights import Weights, encoder, forward, random_batch, read_weights

from embed import config
from embed.cpu import _native

SIZES = {"layers": 1, "width": 32, "inner": 64, "heads": 4, "eps": 1e-5, "threads": 1, "max_tokens": 64}
F32, I32 = np.float32, np.int32


def zeros(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return read_weights(tiny.make("xlmr", tmp_path / "model", config=tiny.shape(32, 4, 64, 1)))


@pytest.fixture
def built(weights: Weights) -> _native.Encoder:
    return encoder("scalar", weights, max_tokens=64)


def test_sets_are_named_best_first() -> None:
    assert list(_native.instruction_sets()) == ["avx512", "avx2", "neon", "scalar"]
    assert _native.instruction_sets()["scalar"] is None


def test_config_json_may_ask_for_what_is_built_and_no_more() -> None:
    assert config.MAX_HEAD_DIM == _native.MAX_HEAD_DIM
    assert config.MAX_WIDTH == _native.MAX_WIDTH
    assert config.MAX_INNER == _native.MAX_INNER


@pytest.mark.parametrize("change", [{}, {"width": 312, "heads": 12}, {"threads": 5}, {"max_tokens": 9000}])
def test_memory_is_foretold_to_the_byte(isa: str, change: dict[str, int]) -> None:
    sizes = {**SIZES, **change}
    held = _native.Encoder(isa, activation="gelu", **sizes)
    del sizes["eps"]
    assert _native.memory_bytes(isa, **sizes) == (held.weight_bytes, held.workspace_bytes)


def test_memory_is_foretold_for_what_no_machine_has() -> None:
    sizes = {"layers": 1024, "width": 65536, "inner": 262144, "heads": 512, "threads": 1, "max_tokens": 1 << 30}
    weights, workspace = _native.memory_bytes("scalar", **sizes)
    assert weights >= 4 * 1024 * (4 * 65536**2 + 2 * 65536 * 262144)
    assert workspace >= 4 * 2**30 * (3 * 65536 + 262144)
    with pytest.raises(ValueError, match="width must be a multiple of heads"):
        _native.memory_bytes("scalar", **{**sizes, "heads": 511})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mmx", {}, "'mmx' is unknown; known are avx512, avx2, neon, scalar"),
        ("scalar", {"activation": "tanh"}, "activation 'tanh' is none of gelu, gelu_tanh, relu, silu"),
        ("scalar", {"activation": "bias"}, "none of gelu"),
        ("scalar", {"heads": 5}, "width must be a multiple of heads"),
        ("scalar", {"width": 260, "heads": 2}, "a head is at most 128 wide, not 130"),
        ("scalar", {"layers": 0}, "layers, width, inner and heads must each be at least 1"),
        ("scalar", {"width": 1 << 20}, "width is at most 65536"),
        ("scalar", {"threads": 0}, "threads and max_tokens must each be at least 1"),
        ("scalar", {"max_tokens": -1}, "threads and max_tokens must each be at least 1"),
    ],
)
def test_a_shape_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Encoder(name, **{**SIZES, "activation": "gelu", **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"up": zeros(64, 31)}, r"up has the shape \(64, 31\), not \(64, 32\)"),
        ({"bias": zeros(33)}, r"bias has the shape \(33,\), not \(32,\)"),
        ({"query": zeros(32, 32, dtype=np.float64)}, "query has the format 'd'; float32, float16 and uint16 are read"),
        ({"query": zeros(32, 32, dtype=">f4")}, "query has the format '>f'"),
        ({"key": zeros(32, 64)[:, ::2]}, "contiguous"),
        ({"value": np.frombuffer(bytes(4097), np.uint8)[1:].view(F32).reshape(32, 32)}, "value lies at an unaligned"),
    ],
)
def test_a_tensor_is_refused(weights: Weights, change: dict[str, np.ndarray], message: str) -> None:
    built = _native.Encoder("scalar", activation="gelu", **SIZES)
    with pytest.raises(ValueError, match=message):
        built.load_layer(0, **{**vars(weights.layers[0]), **change})


def test_no_array_at_all_is_a_type_error(weights: Weights) -> None:
    built = _native.Encoder("scalar", activation="gelu", **SIZES)
    with pytest.raises(TypeError):
        built.load_layer(0, **{**vars(weights.layers[0]), "up": None})


@pytest.mark.parametrize(
    ("ids", "positions", "offsets", "message"),
    [
        ([9999], [0], [0, 1], r"ids\[0\] is 9999, but the table has \d+ rows"),
        ([1, -1], [0, 1], [0, 2], r"ids\[1\] is -1"),
        ([1], [514], [0, 1], r"positions\[0\] is 514, but the table has 514 rows"),
        ([1, 2], [0], [0, 2], "positions has 1 elements, not 2"),
        ([1, 2], [0, 1], [0, 1], "from 0 to the number of tokens, 2"),
        ([1, 2], [0, 1], [1, 2], "from 0 to the number of tokens, 2"),
        ([1, 2], [0, 1], [0, 1, 1, 2], "text 1 would run from 1 to 1"),
        ([1, 2], [0, 1], [0, 3, 2], "text 1 would run from 3 to 2"),
        ([1, 2], [0, 1], [2], "over at least one text"),
        ([], [], [0], "over at least one text"),
        ([1] * 65, [0] * 65, [0, 65], "a batch of 65 tokens, but the encoder has room for 64"),
    ],
)
def test_a_batch_is_refused(
    built: _native.Encoder, ids: list[int], positions: list[int], offsets: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        built.embed(np.array(ids, I32), np.array(positions, I32), np.array(offsets, I32))


@pytest.mark.parametrize(
    ("out", "pooling", "message"),
    [
        (zeros(1, 31), "mean", r"out has the shape \(1, 31\), not \(1, 32\)"),
        (zeros(2, 32), "mean", r"out has the shape \(2, 32\), not \(1, 32\)"),
        (zeros(1, 32, dtype=np.float64), "mean", "mismatch"),
        (zeros(1, 64)[:, ::2], "mean", "contiguous"),
        (zeros(1, 32), "average", "pooling 'average' is none of cls, mean"),
    ],
)
def test_an_output_is_refused(built: _native.Encoder, out: np.ndarray, pooling: str, message: str) -> None:
    built.embed(np.array([1], I32), np.array([0], I32), np.array([0, 1], I32))
    with pytest.raises(ValueError, match=message):
        built.pool(out, pooling, True)


def test_a_read_only_output_is_refused(built: _native.Encoder) -> None:
    out = zeros(1, 32)
    out.flags.writeable = False
    built.embed(np.array([1], I32), np.array([0], I32), np.array([0, 1], I32))
    with pytest.raises(ValueError, match="read-only"):
        built.pool(out, "mean", True)


def test_the_order_of_a_forward_is_kept(built: _native.Encoder, weights: Weights) -> None:
    for early in (lambda: built.self_attention(0), lambda: built.feed_forward(0)):
        with pytest.raises(RuntimeError, match=r"embed\(\) comes before"):
            early()
    with pytest.raises(ValueError, match="out has the shape"):
        built.pool(zeros(1, 32), "mean", True)  # no batch, so no texts
    forward(built, weights, random_batch(weights.config, [3]))
    with pytest.raises(RuntimeError, match=r"embed\(\) comes before"):
        built.self_attention(0)  # the batch ended with pool()


def test_a_layer_that_is_not_there(built: _native.Encoder, weights: Weights) -> None:
    built.embed(np.array([1], I32), np.array([0], I32), np.array([0, 1], I32))
    for layer in (-1, 1):
        with pytest.raises(IndexError):
            built.self_attention(layer)
        with pytest.raises(IndexError):
            built.load_layer(layer, **vars(weights.layers[0]))


def test_weights_come_once_and_before_the_forward(built: _native.Encoder, weights: Weights) -> None:
    with pytest.raises(RuntimeError, match="layer 0 is already loaded"):
        built.load_layer(0, **vars(weights.layers[0]))
    with pytest.raises(RuntimeError, match="already loaded"):
        built.load_embeddings(*vars(weights.embeddings).values())
    empty = _native.Encoder("scalar", activation="gelu", **SIZES)
    with pytest.raises(ValueError, match="the table has 0 rows"):
        empty.embed(np.array([1], I32), np.array([0], I32), np.array([0, 1], I32))
    empty.load_embeddings(*vars(weights.embeddings).values())
    empty.embed(np.array([1], I32), np.array([0], I32), np.array([0, 1], I32))
    with pytest.raises(RuntimeError, match="layer 0 has no weights yet"):
        empty.self_attention(0)


def test_tables_outlive_their_names(weights: Weights) -> None:
    """The encoder reads the tables in place, so it must hold on to them: and to the batch, until pool()."""
    built = encoder("scalar", weights)
    batch = random_batch(weights.config, [5, 3])
    want = forward(built, weights, batch)
    copies = _native.Encoder("scalar", activation="gelu", **SIZES)
    copies.load_embeddings(*(tensor.copy() for tensor in vars(weights.embeddings).values()))
    copies.load_layer(0, **{name: tensor.copy() for name, tensor in vars(weights.layers[0]).items()})
    copies.embed(batch.ids.copy(), batch.positions.copy(), batch.offsets.copy())
    rubbish = [np.full(size, -1, I32) for size in (3, 8) for _ in range(100)]
    copies.self_attention(0)
    copies.feed_forward(0)
    out = np.empty_like(want)
    copies.pool(out, "mean", True)
    assert out.tobytes() == want.tobytes()
    assert len(rubbish) == 200


OFFSETS = np.array([0, 2], I32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _native.gemm("scalar", zeros(2, 3), zeros(4, 2), zeros(4)), r"weight has the shape \(4, 2\)"),
        (lambda: _native.gemm("scalar", zeros(0, 3), zeros(4, 3), zeros(4)), "tokens must be at least 1"),
        (lambda: _native.gemm("scalar", zeros(2, 3), zeros(4, 3), zeros(4), threads=0), "threads must be at least 1"),
        (lambda: _native.gemm("scalar", zeros(2, 3), zeros(4, 3), zeros(4), epilogue="residual"), "residual goes with"),
        (
            lambda: _native.gemm("scalar", zeros(2, 3), zeros(4, 3), zeros(4), residual=zeros(2, 4)),
            "residual goes with",
        ),
        (lambda: _native.gemm("scalar", zeros(2, 3), zeros(4, 3), zeros(4), epilogue="swish"), "none of bias"),
        (lambda: _native.attention("scalar", zeros(2, 20), OFFSETS, heads=2), "20 columns"),
        (lambda: _native.attention("scalar", zeros(2, 3 * 129), OFFSETS, heads=1), "heads of 1 to 128"),
        (lambda: _native.attention("scalar", zeros(3, 24), OFFSETS, heads=2), "number of tokens, 3"),
        (lambda: _native.layer_norm("scalar", zeros(2, 5), zeros(4), zeros(5), eps=0), "gain has 4 elements"),
        (lambda: _native.gather("scalar", *[zeros(2, 3)] * 3, np.array([2], I32), np.array([0], I32)), "2 rows"),
        (lambda: _native.gather("scalar", *[zeros(2, 3)] * 3, np.array([0], I32), np.array([-1], I32)), "is -1"),
        (lambda: _native.pool("scalar", zeros(1, 4), OFFSETS, pooling="cls", normalize=True), "number of tokens, 1"),
        (lambda: _native.exp2("scalar", zeros(0)), "x must be at least 1"),
        (lambda: _native.activation("scalar", zeros(3), name="residual"), "none of gelu"),
    ],
)
def test_a_single_kernel_refuses(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
