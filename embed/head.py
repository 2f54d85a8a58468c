"""Which head of a very long text is enough: one whose tokens are those of the whole text, as far as a model reads.

Tokenising 16 MB takes half a minute and gigabytes, of which a model reads some hundred tokens. But a text can't be cut
anywhere: what follows may change the tokens before. Most tokenizers split a text into words by looking at a character
or two, and each word gives its tokens by itself; there only the last words of a head can be wrong.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

CHARACTERS, CHARACTERS_PER_TOKEN = 4096, 16  # of the first head that is tried; each further one is GROWTH times as long
GROWTH = 4
# What the cut may have changed: a special token such as [unused99] that was cut is several words, and a ligature that
# normalises to a sentence (U+FDFA) is four.
UNSURE_WORDS = 64

_LOCAL_SPLITS = {"BertPreTokenizer", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"}
_LOCAL_NORMALIZERS = {
    "BertNormalizer",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Prepend",
    "Strip",
    "StripAccents",
}


def splits_locally(library: tokenizers.Tokenizer) -> bool:
    """Tell whether the tokenizer's words depend on what is near them alone, so far as its parts are known here."""
    longest = max((len(token.content) for token in library.get_added_tokens_decoder().values()), default=0)
    if library.pre_tokenizer is None or longest > UNSURE_WORDS - 2:
        return False
    splits = _parts(_state(library.pre_tokenizer), "pretokenizers")
    normalizers = [] if library.normalizer is None else _parts(_state(library.normalizer), "normalizers")
    return all(map(_is_local_split, splits)) and all(map(_is_local_normalizer, normalizers))


def sure_tokens(encoding: tokenizers.Encoding) -> int:
    """Return how many of a head's first tokens are those of the whole text."""
    words = encoding.word_ids
    last = next((word for word in reversed(words) if word is not None), 0)
    return sum(1 for word in words if word is not None and word <= last - UNSURE_WORDS)


def _state(component: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _parts(state: dict[str, Any], key: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [part for inner in state[key] for part in _parts(inner, key)]


def _is_local_split(state: dict[str, Any]) -> bool:
    if state["type"] == "Metaspace":
        return bool(state.get("split", True))
    if state["type"] == "ByteLevel":
        return bool(state.get("use_regex", True))
    return state["type"] in _LOCAL_SPLITS


def _is_local_normalizer(state: dict[str, Any]) -> bool:
    if state["type"] == "Replace":
        pattern = state["pattern"]
        return "String" in pattern or pattern.get("Regex") == " {2,}"
    return state["type"] in _LOCAL_NORMALIZERS
