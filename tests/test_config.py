"""config.json: what is read, what is refused and in which words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tiny

from embed.config import read_config
from embed.errors import ModelError


def config_of(directory: Path, kind: str = "xlmr", **changes: Any) -> Path:
    """Write a config.json alone; a key changed to `...` is left out."""
    directory.mkdir(exist_ok=True)
    tiny.write_json(directory / "config.json", tiny.default_config(kind, 200))
    tiny.change_json(directory / "config.json", **changes)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_config(directory)
    message = str(caught.value)
    assert str(directory) in message
    assert "\n" not in message
    return message


def test_sizes_of_xlmr(tmp_path: Path) -> None:
    config = read_config(config_of(tmp_path))
    assert (config.layers, config.width, config.inner, config.heads) == (2, 32, 64, 4)
    assert (config.vocab, config.positions, config.types, config.pad_id) == (200, 34, 1, 1)
    assert (config.architecture, config.model_type) == ("XLMRobertaModel", "xlm-roberta")
    assert (config.eps, config.activation) == (1e-5, "gelu")


@pytest.mark.parametrize(
    ("kind", "changes", "max_length", "position_pad_id"),
    [
        ("xlmr", {}, 32, 1),
        ("xlmr", {"pad_token_id": 0}, 33, 0),
        ("xlmr", {"pad_token_id": 5}, 28, 5),
        ("xlmr", {"pad_token_id": ...}, 32, 1),  # the class's default
        ("xlmr", {"model_type": "roberta"}, 32, 1),
        ("xlmr", {"model_type": "camembert", "architectures": None}, 32, 1),
        ("bert", {}, 32, None),
        ("bert", {"pad_token_id": None}, 32, None),
        # Positions follow model_type, whatever the architecture is called.
        ("bert", {"architectures": ["XLMRobertaModel"]}, 32, None),
        ("xlmr", {"architectures": ["BertModel"]}, 32, 1),
    ],
)
def test_positions_follow_model_type(
    tmp_path: Path, kind: str, changes: dict[str, Any], max_length: int, position_pad_id: int | None
) -> None:
    config = read_config(config_of(tmp_path, kind, **changes))
    assert config.max_length == max_length
    assert config.position_pad_id == position_pad_id


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("relu", "relu"),
        ("silu", "silu"),
        ("swish", "silu"),
        (..., "gelu"),
    ],
)
def test_activation(tmp_path: Path, name: Any, activation: str) -> None:
    assert read_config(config_of(tmp_path, hidden_act=name)).activation == activation


def test_defaults_are_those_of_transformers_classes(tmp_path: Path) -> None:
    config = read_config(config_of(tmp_path, layer_norm_eps=..., type_vocab_size=..., architectures=...))
    assert (config.eps, config.types, config.architecture) == (1e-12, 2, "XLMRobertaModel")


@pytest.mark.parametrize(
    "architecture",
    ["XLMRobertaForMaskedLM", "RobertaForSequenceClassification", "BertLMHeadModel", "BertForPreTraining"],
)
def test_a_body_under_a_head_is_read(tmp_path: Path, architecture: str) -> None:
    assert read_config(config_of(tmp_path, architectures=[architecture])).architecture == architecture


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "mish"}, ["hidden_act", "mish", "gelu_new"]),
        ({"hidden_act": None}, ["hidden_act", "null"]),
        ({"hidden_act": ["gelu"]}, ["hidden_act"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
        ({"position_embedding_type": "rotary"}, ["position_embedding_type", "rotary"]),
        ({"is_decoder": True}, ["is_decoder"]),
        ({"add_cross_attention": True}, ["add_cross_attention"]),
        ({"model_type": "modernbert"}, ["model_type", "modernbert", "xlm-roberta"]),
        ({"model_type": "xlm-roberta-xl"}, ["model_type", "xlm-roberta-xl"]),
        ({"model_type": ...}, ["model_type", "missing"]),
        ({"architectures": ["NewModel"]}, ["architectures", "NewModel"]),
        ({"architectures": ["RobertaPreLayerNormModel"]}, ["RobertaPreLayerNormModel"]),
        ({"architectures": ["XLMRobertaXLModel"]}, ["XLMRobertaXLModel"]),
        ({"architectures": "BertModel"}, ["architectures"]),
        ({"architectures": []}, ["architectures"]),
        ({"hidden_size": ...}, ["hidden_size", "missing"]),
        ({"num_hidden_layers": ...}, ["num_hidden_layers", "missing"]),
        ({"max_position_embeddings": ...}, ["max_position_embeddings", "missing"]),
        ({"vocab_size": ...}, ["vocab_size", "missing"]),
        ({"hidden_size": "32"}, ["hidden_size", '"32"']),
        ({"hidden_size": 32.0}, ["hidden_size", "32.0"]),
        ({"hidden_size": True}, ["hidden_size", "true"]),
        ({"hidden_size": None}, ["hidden_size", "null"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers"]),
        ({"vocab_size": 2**31}, ["vocab_size"]),
        ({"intermediate_size": -1}, ["intermediate_size", "-1"]),
        ({"hidden_size": 65537}, ["hidden_size", "65536"]),
        ({"intermediate_size": 262145}, ["intermediate_size", "262144"]),
        ({"num_attention_heads": 5}, ["num_attention_heads", "5", "hidden_size 32"]),
        ({"hidden_size": 520, "num_attention_heads": 4}, ["520", "130", "128"]),
        ({"layer_norm_eps": 0}, ["layer_norm_eps"]),
        ({"layer_norm_eps": 10**400}, ["layer_norm_eps"]),
        ({"layer_norm_eps": 1e300}, ["layer_norm_eps", "at most 1"]),
        ({"layer_norm_eps": "1e-5"}, ["layer_norm_eps"]),
        ({"type_vocab_size": 0}, ["type_vocab_size"]),
        ({"pad_token_id": None}, ["pad_token_id", "null"]),
        ({"pad_token_id": -1}, ["pad_token_id", "-1"]),
        ({"pad_token_id": 200}, ["pad_token_id", "vocab_size 200"]),
        ({"max_position_embeddings": 4}, ["max_position_embeddings", "4"]),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    message = refusal(config_of(tmp_path, **changes))
    assert "config.json" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "object is expected"),
        (b"null", "object is expected"),
        (b'{"hidden_size": NaN}', "NaN"),
        (b'{"a": 1, "a": 1}', "'a' is given twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 42\n", "git lfs pull"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert word in refusal(tmp_path)


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    config_of(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_config(tmp_path).width == 32


def test_missing_directory_and_file(tmp_path: Path) -> None:
    assert "no such directory" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").write_text(json.dumps({}))
    assert "not a directory" in refusal(tmp_path / "file")
    assert "no such file" in refusal(tmp_path)


def test_links_are_followed_and_dangling_ones_named(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    config_of(blobs)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").symlink_to(blobs / "config.json")
    (tmp_path / "link").symlink_to(snapshot)
    assert read_config(tmp_path / "link").width == 32
    (blobs / "config.json").write_bytes(b"")
    assert f"(a link to {blobs / 'config.json'})" in refusal(snapshot)
    (blobs / "config.json").unlink()
    message = refusal(snapshot)
    assert "dangling" in message
    assert str(blobs / "config.json") in message


def test_a_folder_or_a_pipe_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert "is not a file" in refusal(tmp_path)
    (tmp_path / "config.json").rmdir()
    os.mkfifo(tmp_path / "config.json")  # opening it would wait for ever
    assert "is not a file" in refusal(tmp_path)
