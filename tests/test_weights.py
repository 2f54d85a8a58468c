"""The encoder's tensors in a checkpoint: found under any prefix, checked before anything is packed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny

from embed.checkpoint import Checkpoint
from embed.config import ModelConfig, read_config
from embed.errors import ModelError
from embed.weights import check, embedding_tensor_names, embedding_weights, layer_tensor_names, layer_weights

PREFIXES = ["", "bert.", "roberta.", "model.", "xlm_roberta.", "encoder.model."]


def opened(directory: Path) -> tuple[Checkpoint, ModelConfig]:
    return Checkpoint.open(directory), read_config(directory)


def arrays(directory: Path) -> dict[str, np.ndarray]:
    """Return every array that the forward gets, by field name."""
    checkpoint, config = opened(directory)
    check(checkpoint, config)
    found = {f"embeddings.{name}": value for name, value in vars(embedding_weights(checkpoint, config)).items()}
    for layer in range(config.layers):
        found |= {f"{layer}.{name}": value for name, value in vars(layer_weights(checkpoint, config, layer)).items()}
    return found


def refusal(directory: Path) -> str:
    checkpoint, config = opened(directory)
    with pytest.raises(ModelError) as caught:
        check(checkpoint, config)
    return str(caught.value)


def rewrite(directory: Path, change: Callable[[dict[str, tiny.Encoded]], None], *, prefix: str = "") -> Path:
    """Write the tiny model's weights again after `change` worked on the encoded tensors."""
    tensors = tiny.random_tensors(tiny.default_config("xlmr", read_config(directory).vocab))
    encoded = {prefix + name: tiny.encoded(tensor, "F32") for name, tensor in tensors.items()}
    change(encoded)
    (directory / "model.safetensors").unlink()  # a test may still have it mapped
    tiny.write_safetensors(directory / "model.safetensors", encoded)
    return directory


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return tiny.make("xlmr", tmp_path / "plain")


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_every_field_holds_its_own_tensor(plain: Path) -> None:
    tensors = tiny.random_tensors(tiny.default_config("xlmr", read_config(plain).vocab))
    checkpoint, config = opened(plain)
    embeddings = embedding_weights(checkpoint, config)
    np.testing.assert_array_equal(embeddings.word, tensors["embeddings.word_embeddings.weight"])
    np.testing.assert_array_equal(embeddings.token_type, tensors["embeddings.token_type_embeddings.weight"])
    layer = layer_weights(checkpoint, config, 1)
    at = "encoder.layer.1"
    np.testing.assert_array_equal(layer.key, tensors[f"{at}.attention.self.key.weight"])
    np.testing.assert_array_equal(layer.attention_gain, tensors[f"{at}.attention.output.LayerNorm.weight"])
    np.testing.assert_array_equal(layer.up, tensors[f"{at}.intermediate.dense.weight"])
    np.testing.assert_array_equal(layer.bias, tensors[f"{at}.output.LayerNorm.bias"])
    pointers = [array.ctypes.data for array in arrays(plain).values()]
    assert len(set(pointers)) == len(pointers) == 5 + 2 * 16


@pytest.mark.parametrize("prefix", PREFIXES)
def test_any_prefix(plain: Path, tmp_path: Path, prefix: str) -> None:
    assert_same(arrays(plain), arrays(tiny.make("xlmr", tmp_path / "prefixed", prefix=prefix)))


def test_tensors_that_nobody_asked_for_are_ignored(plain: Path, tmp_path: Path) -> None:
    expected = arrays(plain)

    def change(tensors: dict[str, tiny.Encoded]) -> None:
        del tensors["roberta.pooler.dense.weight"], tensors["roberta.pooler.dense.bias"]
        tensors["roberta.embeddings.position_ids"] = ("I64", (1, 34), bytes(34 * 8))
        tensors["lm_head.dense.weight"] = ("F64", (2,), bytes(16))
        tensors["lm_head.decoder.weight"] = ("I8", (3,), bytes(3))

    copy = tiny.make("xlmr", tmp_path / "more")
    assert_same(expected, arrays(rewrite(copy, change, prefix="roberta.")))


def test_tensorflows_names_of_layer_norm(plain: Path) -> None:
    expected = arrays(plain)

    def change(tensors: dict[str, tiny.Encoded]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)

    assert_same(expected, arrays(rewrite(plain, change)))
    checkpoint, config = opened(plain)
    assert "encoder.layer.0.output.LayerNorm.gamma" in layer_tensor_names(checkpoint, config, 0)


def test_mixed_dtypes_and_shards(plain: Path, tmp_path: Path) -> None:
    exact = arrays(plain)
    mixed = arrays(tiny.make("xlmr", tmp_path / "mixed", dtype="mixed", shards=2))
    assert {array.dtype for array in mixed.values()} == {np.dtype(np.float16), np.dtype(np.float32)}
    for name, array in mixed.items():
        np.testing.assert_array_equal(array, exact[name].astype(array.dtype))


def test_bf16_travels_as_its_bits(plain: Path, tmp_path: Path) -> None:
    exact, bf16 = arrays(plain), arrays(tiny.make("xlmr", tmp_path / "bf16", dtype="BF16"))
    for name, array in bf16.items():
        assert array.dtype == np.uint16
        widened = (array.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(widened, exact[name], rtol=2**-8)


def test_of_two_encoders_the_one_with_layers_counts(plain: Path) -> None:
    expected = arrays(plain)

    def change(tensors: dict[str, tiny.Encoded]) -> None:
        tensors["copy.embeddings.word_embeddings.weight"] = ("F32", (1, 1), bytes(4))
        tensors["old_embeddings.word_embeddings.weight"] = ("F32", (1, 1), bytes(4))

    assert_same(expected, arrays(rewrite(plain, change)))


def test_two_whole_encoders_are_refused(plain: Path) -> None:
    def change(tensors: dict[str, tiny.Encoded]) -> None:
        tensors.update({f"second.{name}": tensor for name, tensor in tensors.items()})

    message = refusal(rewrite(plain, change))
    assert "second.embeddings.word_embeddings.weight" in message


def test_no_encoder_at_all(plain: Path) -> None:
    tiny.write_safetensors(plain / "model.safetensors", {"x": ("F32", (1,), bytes(4))})
    assert "embeddings.word_embeddings.weight" in refusal(plain)


NAMES = [name for name in tiny.random_tensors(tiny.default_config("xlmr", 10)) if not name.startswith("pooler")]


@pytest.mark.parametrize("name", NAMES)
def test_every_encoder_tensor_is_needed(plain: Path, name: str) -> None:
    def change(tensors: dict[str, tiny.Encoded]) -> None:
        del tensors[f"bert.{name}"]

    message = refusal(rewrite(plain, change, prefix="bert."))
    assert name in message
    assert "model.safetensors" in message


@pytest.mark.parametrize("name", NAMES)
def test_every_shape_is_checked(plain: Path, name: str) -> None:
    def change(tensors: dict[str, tiny.Encoded]) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, (*shape[:-1], shape[-1] // 2), data[: len(data) // 2])

    message = refusal(rewrite(plain, change))
    assert name in message
    assert "width" in message or "inner" in message


def test_a_transposed_matrix_is_refused(plain: Path) -> None:
    def change(tensors: dict[str, tiny.Encoded]) -> None:
        dtype, shape, data = tensors["encoder.layer.1.intermediate.dense.weight"]
        tensors["encoder.layer.1.intermediate.dense.weight"] = (dtype, shape[::-1], data)

    message = refusal(rewrite(plain, change))
    assert "has shape [32, 64], config.json asks for [64, 32] (inner x width)" in message


@pytest.mark.parametrize("dtype", ["F64", "F8_E4M3", "I8"])
def test_another_dtype_is_refused(plain: Path, dtype: str) -> None:
    name = "encoder.layer.1.output.dense.bias"
    size = 8 if dtype == "F64" else 1

    def change(tensors: dict[str, tiny.Encoded]) -> None:
        tensors[name] = (dtype, (tiny.WIDTH,), bytes(size * tiny.WIDTH))

    message = refusal(rewrite(plain, change))
    assert f"model.safetensors: tensor {name} is {dtype}; F32, F16, BF16 are read" in message


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("vocab_size", "word_embeddings"),
        ("max_position_embeddings", "position_embeddings"),
        ("type_vocab_size", "token_type_embeddings"),
        ("num_hidden_layers", "encoder.layer.2.attention.self.query.weight"),
        ("intermediate_size", "intermediate.dense.weight"),
    ],
)
def test_config_and_weights_must_agree(plain: Path, key: str, tensor: str) -> None:
    config = tiny.default_config("xlmr", read_config(plain).vocab)
    tiny.change_json(plain / "config.json", **{key: config[key] + 1})
    assert tensor in refusal(plain)


def test_fewer_layers_than_the_file_has_are_read(plain: Path) -> None:
    tiny.change_json(plain / "config.json", num_hidden_layers=1)
    assert len(arrays(plain)) == 5 + 16


def test_embedding_names_are_exactly_what_the_embeddings_read(plain: Path) -> None:
    checkpoint, _ = opened(plain)
    names = embedding_tensor_names(checkpoint)
    assert sorted(names) == sorted(name for name in checkpoint.names if name.startswith("embeddings."))


def test_layer_names_are_exactly_what_a_layer_reads(plain: Path) -> None:
    checkpoint, config = opened(plain)
    names = layer_tensor_names(checkpoint, config, 1)
    assert sorted(names) == sorted(name for name in checkpoint.names if name.startswith("encoder.layer.1."))
    weights = layer_weights(checkpoint, config, 1)
    before = {field.name: getattr(weights, field.name).copy() for field in dataclasses.fields(weights)}
    checkpoint.release(names)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(weights, name), array)
