"""Token ids are the library's on the directory's own file; a text that it can't do is a sentence, not a panic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from texts import ODDITIES, corpus, random_texts
from tokenizer_files import directory_with, ids_of, load
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from embed import tokenizer as module
from embed.errors import OptionError, TextError, TextTypeError

KINDS = ["xlmr", "bert"]


@pytest.fixture(params=KINDS)
def library(request: pytest.FixtureRequest) -> Library:
    return tiny.TOKENIZERS[request.param]()


def test_ids_are_the_librarys(tmp_path: Path, library: Library) -> None:
    texts = [*corpus().values(), *ODDITIES, *random_texts(1000, seed=0)]
    tokenized = load(directory_with(tmp_path, library)).encode(texts, 10**6)
    for text, ours in zip(texts, tokenized, strict=True):
        assert ours.ids.tolist() == library.encode(text).ids, ascii(text)
        assert ours.ids.dtype == np.int32
        assert (ours.tokens, ours.truncated) == (len(ours.ids), False)


@pytest.mark.parametrize("maxseq", [3, 4, 7, 8, 32])
def test_truncation_is_the_librarys_own(tmp_path: Path, library: Library, maxseq: int) -> None:
    texts = [
        *ODDITIES,
        *random_texts(500, seed=1),
        "a </s> b </s> c </s>" * 3,
        "[SEP] a [SEP]" * 9,
        "</s></s></s></s></s>",
    ]
    tokenized = load(directory_with(tmp_path, library)).encode(texts, maxseq)
    lengths = [len(library.encode(text).ids) for text in texts]
    library.enable_truncation(maxseq)
    for text, length, ours in zip(texts, lengths, tokenized, strict=True):
        assert ours.ids.tolist() == library.encode(text).ids, ascii(text)
        assert (ours.tokens, ours.truncated) == (length, length > maxseq)
    assert any(text.truncated for text in tokenized)
    assert maxseq < 32 or not all(text.truncated for text in tokenized)


def test_only_the_kept_tokens_matter(tmp_path: Path) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))
    limit = 32
    kept, last, beyond = ["the"] * (limit - 3), ["dog"], ["hello", "world"]
    words = [kept + last + beyond[:1], kept + last + beyond[1:], [*kept, "fox", *beyond[:1]]]
    first, second, third = ids_of(tokenizer, [" ".join(text) for text in words], limit)
    assert first == second
    assert first != third
    assert [i for i in range(limit) if first[i] != third[i]] == [limit - 2]


def test_truncation_and_padding_in_the_file_dont_leak(tmp_path: Path, library: Library) -> None:
    texts = ["the quick fox", "the " * 50]
    expected = [library.encode(text).ids for text in texts]
    library.enable_truncation(5)
    library.enable_padding(length=128)
    tokenizer = load(directory_with(tmp_path, library))
    assert ids_of(tokenizer, texts) == expected
    assert [len(ids) for ids in ids_of(tokenizer, texts, 20)] == [len(expected[0]), 20]


def test_slices_change_nothing(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(directory_with(tmp_path, library))
    texts = [*ODDITIES, *random_texts(200, seed=2)]
    expected = ids_of(tokenizer, texts, 9)
    for size in (1, 50, 1000):
        monkeypatch.setattr(module, "_SLICE_CHARACTERS", size)
        assert ids_of(tokenizer, texts, 9) == expected
    assert ids_of(tokenizer, []) == []


def test_slices_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))
    calls: list[int] = []
    inner = tokenizer._library.encode_batch_fast

    class Spy:
        def encode_batch_fast(self, texts: list[str]) -> Any:
            calls.append(sum(map(len, texts)))
            return inner(texts)

    monkeypatch.setattr(tokenizer, "_library", Spy())
    monkeypatch.setattr(module, "_SLICE_CHARACTERS", 10)
    tokenizer.encode(["abcd"] * 5 + ["a" * 30] + ["abcd"], 99)
    assert calls == [8, 8, 4, 30, 4]


def test_a_literal_special_token_is_its_id(tmp_path: Path) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))
    (ids,) = ids_of(tokenizer, ["a <pad> b</s>"])
    assert ids.count(1) == 1
    assert ids.count(2) == 2


def test_invisible_texts_are_no_error(tmp_path: Path, library: Library) -> None:
    tokenizer = load(directory_with(tmp_path, library))
    texts = ["", " ", "\n\n\n", "\u3000", "\u200b", "\u200d", "\ufeff", "\x00", "soft\u00adhyphen", "\ufeffhello"]
    for ids in ids_of(tokenizer, texts):
        assert len(ids) >= 2
    assert ids_of(tokenizer, ["", " ", "\n\n\n"]) == [ids_of(tokenizer, [""])[0]] * 3


# BERT's basic steps.


def tokens_of(tmp_path: Path, text: str, **options: Any) -> list[str]:
    library = tiny.wordpiece_tokenizer(**options)
    (ids,) = ids_of(load(directory_with(tmp_path, library, "bert")), [text])
    return [library.id_to_token(i) for i in ids[1:-1]]


def test_strip_accents_follows_lowercase_unless_set(tmp_path: Path) -> None:
    assert tokens_of(tmp_path, "Café") == ["cafe"]
    assert tokens_of(tmp_path, "cafe\u0301") == ["cafe"]
    assert tokens_of(tmp_path, "Café", strip_accents=False) == ["café"]
    assert tokens_of(tmp_path, "café", lowercase=False) == ["café"]
    assert tokens_of(tmp_path, "café", lowercase=False, strip_accents=True) == ["cafe"]
    assert tokens_of(tmp_path, "É", lowercase=False) == ["É"]


def test_ideographs_are_words_of_their_own(tmp_path: Path) -> None:
    assert tokens_of(tmp_path, "東京tower") == ["東", "京", "tower"]
    assert tokens_of(tmp_path, "東京tower", handle_chinese_chars=False)[:2] == ["東", "##京"]


def test_words_over_100_characters_are_unknown(tmp_path: Path) -> None:
    assert len(tokens_of(tmp_path, "a" * 100)) == 100
    assert tokens_of(tmp_path, "a" * 101) == ["[UNK]"]


def test_punctuation_splits(tmp_path: Path) -> None:
    assert tokens_of(tmp_path, "don't-a!") == ["d", "##o", "##n", "'", "t", "-", "a", "!"]


# do_lower_case of sentence_bert_config.json.


def test_lowercase_spares_special_tokens(tmp_path: Path) -> None:
    library = tiny.unigram_tokenizer()
    library.add_special_tokens(["<BIG>"])
    directory = directory_with(tmp_path, library)
    plain, lower = load(directory), load(directory, lowercase=True)
    assert ids_of(lower, ["HELLO World <BIG>"]) == ids_of(plain, ["hello world <BIG>"])
    assert ids_of(plain, ["HELLO World <BIG>"]) != ids_of(plain, ["hello world <BIG>"])


def test_lowercase_comes_before_the_files_own_normalizer(tmp_path: Path) -> None:
    library = tiny.unigram_tokenizer()
    library.normalizer = normalizers.Replace("A", "b")
    directory = directory_with(tmp_path, library)
    assert ids_of(load(directory, lowercase=True), ["A"]) == ids_of(load(directory), ["a"])
    tiny.change_json(directory / "tokenizer.json", normalizer=None)
    assert ids_of(load(directory, lowercase=True), ["A"]) == ids_of(load(directory), ["a"])


# Texts that are refused.


@pytest.mark.parametrize("value", [None, 17, 1.5, b"bytes", ["list"], {"a": 1}])
def test_what_is_no_string_is_refused_with_its_index(tmp_path: Path, value: Any) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))
    with pytest.raises(TextTypeError, match=f"text 1 is {type(value).__name__}") as caught:
        tokenizer.encode(["ok", value, "ok"], 32)
    assert caught.value.index == 1
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("text", ["\ud83d", "héllo \ud800 x", "\ude00\ud83d"])
def test_lone_surrogates_are_refused_with_their_index(tmp_path: Path, text: str) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))
    with pytest.raises(
        TextError, match=r"text 2 has a lone surrogate, U\+D[0-9A-F]{3}, as its character \d+"
    ) as caught:
        tokenizer.encode(["ok", "😀", text], 32)
    assert caught.value.index == 2


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, tiny.unigram_tokenizer())
    tiny.change_json(directory / "tokenizer.json", post_processor=None)
    tokenizer = load(directory)
    assert ids_of(tokenizer, ["a b c d e"], 3) == [ids_of(tokenizer, ["a b c d e"])[0][:3]]
    with pytest.raises(TextError, match="text 1 has no tokens") as caught:
        tokenizer.encode(["a", "", "b"], 32)
    assert caught.value.index == 1


def test_a_maxseq_without_room_for_text_is_refused(tmp_path: Path) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))
    with pytest.raises(OptionError, match=r"maxseq 2: .* at least 3"):
        tokenizer.encode(["a"], 2)


def test_the_engine_follows_the_models_type(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "a": 1, "b": 2, "ab": 3, " ": 4}
    library = Library(models.BPE(vocab, [("a", "b")], unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    directory = directory_with(tmp_path, library)
    (directory / "sentencepiece.bpe.model").write_bytes(b"\x0a")
    assert ids_of(load(directory), ["ab ba"]) == [[3, 2, 1]]


def test_a_failure_on_a_text_is_an_error_with_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tiny.unigram_tokenizer()
    directory = directory_with(tmp_path, library)
    content = json.loads((directory / "tokenizer.json").read_text())
    content["model"]["unk_id"] = None
    tiny.write_json(directory / "tokenizer.json", content)
    tokenizer = load(directory)
    monkeypatch.setattr(module, "_SLICE_CHARACTERS", 3)  # the index counts from the first slice's first text
    with pytest.raises(TextError, match=r"text 3 cannot be tokenised.*unk_id") as caught:
        tokenizer.encode(["a", "b", "a", "\u4dff", "b"], 32)
    assert caught.value.index == 3


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, TypeError])
def test_what_the_library_did_not_raise_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    tokenizer = load(directory_with(tmp_path, tiny.unigram_tokenizer()))

    class Interrupted:
        def encode_batch_fast(self, texts: list[str]) -> Any:
            raise kind

    monkeypatch.setattr(tokenizer, "_library", Interrupted())
    with pytest.raises(kind):
        tokenizer.encode(["a"], 32)
