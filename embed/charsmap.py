"""The normalizer "Precompiled" of a tokenizer.json: its character map is checked before the library sees it.

The library panics on a map it can't parse, and prints a Rust trace on stderr before anything can be caught. An empty
or absent map (of a model trained without normalisation) means that nothing is changed, so such a normalizer is taken
out. Searching XLM-R's 17 MB takes 8 ms; parsing them as JSON, 200, is left to the files that need mending.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any

from embed.errors import ModelError
from embed.files import parse_json, shown

_TYPE = b'"Precompiled"'
_FILLED_MAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]+)"')
_LENGTH_BYTES = 4


def sound_charsmaps(path: Path, content: bytes) -> bytes:
    """Return the content of tokenizer.json with only charsmaps that can be parsed.

    Raises `ModelError`, naming `path`, if one can't.
    """
    filled = _FILLED_MAP.findall(content)
    # Fewer: one is empty, absent or odd (or a token is spelt "Precompiled"). Unsound: perhaps "/" is written "\/".
    if len(filled) < content.count(_TYPE) or not all(map(_is_sound, filled)):
        return _mended(path, content)
    return content


def _mended(path: Path, content: bytes) -> bytes:
    tokenizer = parse_json(path, content)
    if isinstance(tokenizer, dict):
        tokenizer["normalizer"] = _without_empty(path, tokenizer.get("normalizer"))
    return json.dumps(tokenizer).encode()


def _without_empty(path: Path, normalizer: Any) -> Any:
    """Return the normalizer, or what is left of it: None where that is nothing."""
    if not isinstance(normalizer, dict):
        return normalizer
    if normalizer.get("type") == "Precompiled":
        charsmap = normalizer.get("precompiled_charsmap")
        if charsmap in (None, ""):
            return None
        if not _is_sound(charsmap):
            raise ModelError(
                f"{path}: precompiled_charsmap {shown(charsmap)} can't be decoded; download the file again, "
                "or take the Precompiled normalizer out"
            )
    if isinstance(normalizer.get("normalizers"), list):
        parts = [_without_empty(path, part) for part in normalizer["normalizers"]]
        return {**normalizer, "normalizers": [part for part in parts if part is not None]}
    return normalizer


def _is_sound(charsmap: Any) -> bool:
    """Tell whether it is base64 of: a length in bytes, a trie of that length in u32 units, replacements in UTF-8."""
    try:
        content = base64.b64decode(charsmap, validate=True)
        trie_bytes = int.from_bytes(content[:_LENGTH_BYTES], "little")
        content[_LENGTH_BYTES + trie_bytes :].decode()
    except (TypeError, ValueError, binascii.Error):
        return False
    return 0 < trie_bytes <= len(content) - _LENGTH_BYTES and trie_bytes % 4 == 0
