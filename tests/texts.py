# ruff: noqa: RUF001 - look-alike characters are what is tested
"""The texts of the tests: the committed corpus, what tokenizers get wrong, and random ones by a seeded rule."""

from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus" / "texts.json"

# Code points that a random text draws from: one entry a script, and the troublesome ones on their own.
RANGES = [
    (0x20, 0x7E), (0x61, 0x7A), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58A),
    (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0xE01, 0xE5B), (0x10A0, 0x10FF), (0x1100, 0x11FF),
    (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2100, 0x214F), (0x2460, 0x24FF), (0x3000, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFE0F), (0xFF01, 0xFFEE), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1F9FF), (0x20000, 0x2A6DF), (0x00, 0x1F), (0xD80, 0xDFF), (0xE000, 0xE0FF), (0xFFF0, 0x100FF),
]  # fmt: skip
SEPARATORS = [" ", " ", " ", " ", "", "  ", "\n", "\t", ", ", "-", "\u00a0", "\u3000", "\u200b", "\u200d"]
# What is odd as it stands; random texts have these among their words.
ODDITIES = [
    *(" ", "  ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u2009", "\u2028", "\u200b", "\u200c", "\u200d", "\u2060"),
    *("\ufeff", "\u00ad", "\u200e", "\u200f", "\u061c", "\u202e", "\x00", "\x01", "\x1b", "\x7f", "\x85", "\ufffd"),
    *("👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "☃️", "🏴‍☠️", "e\u0301", "é", "가", "\u1100\u1161\u11a8", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢", "￼", "\U0010fffd"),
    *("<s>", "</s>", "<pad>", "<unk>", "<mask>", " <mask> ", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<ｓ>"),
    *("▁", "##ing", "▁▁the", "_", "ſ", "ǆ"),
    *("a" * 100, "a" * 101, "QUJD" * 60, "0" * 50, "漢" * 40, "." * 30, ". " * 20),
]
# What is done to a text as a whole.
_FORMS: list[Callable[[str], str]] = [
    str,
    str,
    str.upper,
    str.strip,
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: unicodedata.normalize("NFKD", text),
    lambda text: f" {text}  ",
]


def corpus() -> dict[str, str]:
    """Return name -> text, in the file's order; `"repeat": [text, n]` stands for the text n times over."""
    entries = json.loads(CORPUS.read_text(encoding="utf-8"))
    return {e["name"]: e["text"] if "text" in e else e["repeat"][0] * e["repeat"][1] for e in entries}


def digest(texts: list[str]) -> str:
    """Return a sha256 that changes with any text or their order."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def random_texts(count: int, seed: int) -> list[str]:
    """Return `count` texts of up to 300 words, from the corpus, random code points or `ODDITIES`.

    Two seeds share no text but the shortest.
    """
    rng = random.Random(seed)
    words = [word for text in corpus().values() if len(text) < 400 for word in text.split(" ")]
    return [_random_text(rng, words) for _ in range(count)]


def _random_text(rng: random.Random, words: list[str]) -> str:
    odd = rng.choice([0.0, 0.1, 0.5, 1.0])  # the share of words that no language has
    parts = []
    for _ in range(int(300 ** rng.random()) - (rng.random() < 0.3)):
        parts.append(_odd_word(rng) if rng.random() < odd else rng.choice(words))
        parts.append(rng.choice(SEPARATORS) if rng.random() < 0.2 else " ")
    return rng.choice(_FORMS)("".join(parts if rng.random() < 0.3 else parts[:-1]))


def _odd_word(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return rng.choice(ODDITIES)
    first, last = rng.choice(RANGES)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8)))
