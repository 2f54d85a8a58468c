"""Tokenizers that are refused: missing, broken, or able to give an id that the word table has no row for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from tokenizer_files import directory_with, refusal

KINDS = ["xlmr", "bert"]


def test_no_tokenizer_json_says_how_to_make_one(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, tiny.unigram_tokenizer())
    (directory / "tokenizer.json").unlink()
    assert "save_pretrained" in refusal(directory)
    (directory / "sentencepiece.bpe.model").write_bytes(b"\x0a")
    assert "sentencepiece.bpe.model is there" in refusal(directory)


def test_a_dangling_link_is_not_a_missing_file(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, tiny.unigram_tokenizer())
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.json").symlink_to("blobs/gone")
    assert "dangling link to blobs/gone" in refusal(directory)


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b"\xff\xfe{", b"[" * 100_000, b"null", b'{"model": {"type": "Magic"}}', b"PK\x03\x04"],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    directory = directory_with(tmp_path, tiny.unigram_tokenizer())
    (directory / "tokenizer.json").write_bytes(content)
    assert "can't load it" in refusal(directory)


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, tiny.unigram_tokenizer())
    (directory / "tokenizer.json").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 17\n")
    assert "git lfs pull" in refusal(directory)


def test_an_added_token_beyond_the_table_is_refused_by_name(tmp_path: Path) -> None:
    library = tiny.unigram_tokenizer()
    directory = directory_with(tmp_path, library)
    content = json.loads((directory / "tokenizer.json").read_text())
    rows = library.get_vocab_size()
    content["added_tokens"].append({**content["added_tokens"][-1], "id": rows, "content": "<ent>"})
    tiny.write_json(directory / "tokenizer.json", content)
    message = refusal(directory)
    assert "'<ent>'" in message
    assert f"vocab_size is {rows}" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_beyond_the_table_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    library = tiny.TOKENIZERS[kind]()
    directory = directory_with(tmp_path, library, kind)
    last = library.get_vocab_size() - 1
    tiny.change_json(directory / "config.json", vocab_size=last)
    message = refusal(directory)
    assert repr(library.id_to_token(last)) in message
    assert f"has id {last}" in message


def test_a_hole_in_the_ids_is_no_way_around(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, tiny.wordpiece_tokenizer(), "bert")
    content = json.loads((directory / "tokenizer.json").read_text())
    content["model"]["vocab"]["tower"] = 10_000
    tiny.write_json(directory / "tokenizer.json", content)
    assert "'tower' has id 10000" in refusal(directory)


def test_an_id_from_the_post_processor_counts_too(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, tiny.unigram_tokenizer())
    content = json.loads((directory / "tokenizer.json").read_text())
    content["post_processor"]["special_tokens"]["</s>"]["ids"] = [9_999]
    tiny.write_json(directory / "tokenizer.json", content)
    assert "has id 9999" in refusal(directory)
