"""The head of a long text gives the tokens that the whole text gives, wherever it is cut; or it isn't used."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from embed import head
from embed.config import read_config
from embed.tokenizer import Tokenizer

CORPUS = json.loads((Path(__file__).parent / "corpus" / "texts.json").read_text())
# What is special to a tokenizer, whole and cut; what normalises to much, to nothing, or to something else at an end.
HOSTILE = [
    "<mask>",
    " <mask>",
    "<ma",
    "<pad>",
    "</s>",
    "[MASK]",
    "[unused99]",
    "[unu",
    "[SEP]",
    "\ufdfa" * 3,
    " " * 300,
]
HOSTILE += ["\u0301" * 50, "a" * 150, "\u3000", "\u03a3", "\u0130", "\ufb03", "\u200b", "\n", "x" * 99 + "."]


@pytest.fixture(scope="module", params=["minilm", "e5-small"])
def tokenizer(request, real_model):
    directory = real_model(request.param)
    return Tokenizer.from_directory(directory, read_config(directory))


def pieces() -> list[str]:
    texts = CORPUS if isinstance(CORPUS, list) else list(CORPUS.values())
    return [text for text in texts if isinstance(text, str)] + HOSTILE * 3


def test_tokens_of_a_head_are_those_of_the_whole_text(tokenizer):
    draw, used = random.Random(3), 0
    for _ in range(30):
        joint = draw.choice([" ", "", "\n", "  "])
        text = joint.join(draw.choices(pieces(), k=draw.randint(300, 1200)))[:60_000]
        for maxseq in (16, 128):
            (whole,), (cut,) = tokenizer.encode([text], maxseq), tokenizer.encode([text], maxseq, count_all=False)
            assert cut.ids.tolist() == whole.ids.tolist()
            assert cut.truncated == whole.truncated
            used += cut.tokens != whole.tokens
    assert used > 40, "else this test shows nothing"


def test_sixteen_megabytes_of_words_are_tokenised_as_far_as_a_page(tokenizer, monkeypatch):
    """Half a minute and 8 GB were seen; what is looked at is how much is tokenised, since a time would be flaky."""
    seen = []
    encoding = tokenizer._encoding
    monkeypatch.setattr(tokenizer, "_encoding", lambda text, index: seen.append(len(text)) or encoding(text, index))
    (text,) = tokenizer.encode(["word. " * (16_000_000 // 6)], 512, count_all=False)
    assert len(text.ids) == 512
    assert text.truncated
    assert seen == [head.CHARACTERS + 512 * head.CHARACTERS_PER_TOKEN]


@pytest.mark.parametrize("text", ["", "short", "a" * 50_000, " " * 50_000, "x " * 30 + " " * 50_000])
def test_a_text_whose_head_is_not_enough_is_tokenised_whole(tokenizer, text):
    (whole,), (cut,) = tokenizer.encode([text], 16), tokenizer.encode([text], 16, count_all=False)
    assert cut.ids.tolist() == whole.ids.tolist()
    assert cut.tokens == whole.tokens


def test_long_and_short_texts_keep_their_places(tokenizer):
    texts = ["short", "long text " * 3000, "", "another long one " * 3000, "end"]
    whole, cut = tokenizer.encode(texts, 16), tokenizer.encode(texts, 16, count_all=False)
    assert [text.ids.tolist() for text in cut] == [text.ids.tolist() for text in whole]


def library(pre_tokenizer=None, normalizer=None, added=()) -> Library:
    made = Library(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_tokens(list(added))
    return made


def split(pattern: str):
    return pre_tokenizers.Split(pattern, "isolated")


@pytest.mark.parametrize(
    ("made", "locally"),
    [
        (library(), False),
        (library(pre_tokenizers.WhitespaceSplit()), True),
        (library(pre_tokenizers.Metaspace()), True),
        (library(pre_tokenizers.Metaspace(split=False)), False),
        (library(pre_tokenizers.ByteLevel(use_regex=False)), False),
        (library(split("a")), False),
        (library(pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), split("a")])), False),
        (library(pre_tokenizers.Whitespace(), normalizers.Replace("a", "b")), True),
        (
            library(pre_tokenizers.Whitespace(), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
            True,
        ),
        (library(pre_tokenizers.Whitespace(), added=["x" * 63]), False),
    ],
)
def test_only_known_parts_that_look_at_what_is_near_count_as_local(made, locally):
    assert head.splits_locally(made) == locally
