# ruff: noqa: RUF001 - look-alike characters are what is tested
"""A generator of odd texts, seeded: what tokenizers get wrong, alone and strung together."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable

_SCRIPTS = [
    "The quick brown fox jumps over the lazy dog, twice.",
    "Größe, Übermut, İstanbul, naïve café CRÈME, œuvre, ﬁle ①② Å ℌ",
    "Съешь ещё этих мягких французских булок",
    "السلام عليكم ورحمة الله \u061cوبركاته",
    "שָׁלוֹם עֲלֵיכֶם \u200fעולם",
    "नमस्ते दुनिया क्ष्म क्\u200dष",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "你好，世界！東京tower 漢字かな交じり文",
    "ﾊﾞｯﾃﾘｰ\u3000AB-12 ｶﾞギガ",
    "안녕하세요 세계 한국어",
    "\u0d9a\u0dca\u200d\u0dc2 සිංහල",
    "Tiếng Việt có dấu: ắ ằ ẵ ợ ữ",
    "don't—stop… “quotes” ‘single’ 3.14e-10 $5 10% #tag @name a/b\\c",
    "https://example.org/a?b=c&d=%20 user@example.org 192.168.0.1",
    "def f(x):\n\treturn x**2  # comment\r\n",
]
_PIECES = [
    *(" ", "  ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u2009", "\u2028", "\u200b", "\u200c", "\u200d", "\u2060"),
    *("\ufeff", "\u00ad", "\u200e", "\u200f", "\u061c", "\u202e", "\x00", "\x01", "\x1b", "\x7f", "\x85", "\ufffd"),
    *("👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "☃️", "🏴‍☠️", "e\u0301", "é", "가", "\u1100\u1161\u11a8", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢", "￼", "\U0010fffd"),
    *("<s>", "</s>", "<pad>", "<unk>", "<mask>", " <mask> ", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<ｓ>"),
    *("▁", "##ing", "▁▁the", "_", "ſ", "ǆ"),
    *("a" * 100, "a" * 101, "QUJD" * 60, "0" * 50, "漢" * 40, "." * 30, ". " * 20),
]


def odd_texts(count: int, *, seed: int = 0) -> list[str]:
    """Return `count` texts of up to some hundred characters; the first are the empty one and each oddity alone."""
    rng = random.Random(seed)
    texts = ["", *_PIECES, *_SCRIPTS]
    while len(texts) < count:
        text = "".join(_part(rng) for _ in range(rng.randint(1, 12)))
        texts.append(rng.choice(_FORMS)(text))
    return texts[:count]


def _part(rng: random.Random) -> str:
    script = rng.choice(_SCRIPTS)
    at = rng.randrange(len(script))
    run = script[at : at + rng.randint(1, 25)]
    code_points = "".join(chr(rng.choice(_BLOCKS) + rng.randrange(256)) for _ in range(rng.randint(1, 4)))
    return rng.choice([run, run, rng.choice(_PIECES), rng.choice(_PIECES), code_points])


# First code points of 256-blocks, the surrogates not among them: scripts, symbols, ideographs, emoji, private use.
_BLOCKS = [*range(0, 0x3000, 256), 0x4E00, 0xA000, 0xAC00, 0xE000, 0xF900, 0xFE00, 0xFF00, 0x10000, 0x1D400, 0x1F600]

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
