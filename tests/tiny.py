"""Makers of tiny model directories, on the spot: seeded random weights, a working tokenizer, every file of a real one.

make("xlmr", tmp_path)                              2 layers, width 32, 4 heads, 32 usable positions
make("bert", tmp_path, config={"hidden_act": "relu"}, dtype="BF16", prefix="bert.", shards=2, metadata="new")
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

F32 = NDArray[np.float32]
Encoded = tuple[str, tuple[int, ...], bytes]  # dtype, shape, data of a tensor in a safetensors file

LAYERS, WIDTH, INNER, HEADS = 2, 32, 64, 4
USABLE_POSITIONS = 32
PAD_ID = 1  # of tiny-xlmr
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "hello",
    "world",
    "query",
    "passage",
    "quick",
    "fox",
    "lazy",
    "dog",
    "is",
    "a",
]
_SYMBOLS = list("0123456789.,:;!?'\"-()/&%") + list(
    "äöüßéèñçøабвгдежзиклмнопрстуфхаאבגשלוםمرحباनमस漢字東京日本語한국어ไทย"
)
_OLD_TYPE = "sentence_transformers.models.{}"
_NEW_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
_OLD_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def make(
    kind: str,
    directory: Path,
    *,
    config: Mapping[str, Any] | None = None,
    dtype: str = "F32",
    prefix: str = "",
    shards: int = 1,
    metadata: str | None = "old",
    pooling: str = "mean",
    maxseq: int = USABLE_POSITIONS,
    normalize: bool = True,
    prompts: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Path:
    """Write a model directory of kind "xlmr" or "bert" and return it.

    `config` changes or adds keys of config.json, after the weights' shapes were taken from its sizes. `metadata` is
    "old", "new" (the spelling of sentence-transformers since 5.4) or None for none of its files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = TOKENIZERS[kind]()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {**default_config(kind, tokenizer.get_vocab_size()), **(config or {})}
    write_json(directory / "config.json", settings)
    write_weights(directory, random_tensors(settings, seed=seed), dtype=dtype, prefix=prefix, shards=shards)
    if metadata is not None:
        write_metadata(
            directory, metadata, pooling=pooling, maxseq=maxseq, normalize=normalize, prompts=prompts, width=WIDTH
        )
    return directory


def default_config(kind: str, vocab: int) -> dict[str, Any]:
    """Return config.json of a tiny model as transformers writes it."""
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "vocab_size": vocab,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }
    if kind == "xlmr":
        return {
            "architectures": ["XLMRobertaModel"],
            "model_type": "xlm-roberta",
            "max_position_embeddings": USABLE_POSITIONS + PAD_ID + 1,
            "type_vocab_size": 1,
            "pad_token_id": PAD_ID,
            **sizes,
        }
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "max_position_embeddings": USABLE_POSITIONS,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        **sizes,
    }


def shape(width: int, heads: int, inner: int, layers: int, **more: Any) -> dict[str, Any]:
    """Return the keys of config.json that give a model this shape, and room for 512 tokens."""
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "max_position_embeddings": 514,
        **more,
    }


def random_tensors(config: Mapping[str, Any], *, seed: int = 0) -> dict[str, F32]:
    """Return the encoder's tensors and a pooler under their unprefixed names; all finite, no two alike."""
    rng = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]

    def normal(*shape: int, std: float = 0.2) -> F32:
        return rng.normal(0, std, shape).astype(np.float32)

    def linear(name: str, out: int, into: int) -> dict[str, F32]:
        # As in a trained model, whatever the width: small weights would make all texts, and all errors, look alike.
        return {f"{name}.weight": normal(out, into, std=1.2 / into**0.5), f"{name}.bias": normal(out, std=0.05)}

    def layer_norm(name: str) -> dict[str, F32]:
        return {f"{name}.LayerNorm.weight": 1 + normal(width), f"{name}.LayerNorm.bias": normal(width)}

    tensors = {
        "embeddings.word_embeddings.weight": normal(config["vocab_size"], width, std=1),
        "embeddings.position_embeddings.weight": normal(config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": normal(config["type_vocab_size"], width),
        **layer_norm("embeddings"),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            tensors |= linear(f"{at}.attention.self.{name}", width, width)
        tensors |= linear(f"{at}.attention.output.dense", width, width) | layer_norm(f"{at}.attention.output")
        tensors |= linear(f"{at}.intermediate.dense", inner, width)
        tensors |= linear(f"{at}.output.dense", width, inner) | layer_norm(f"{at}.output")
    return tensors | linear("pooler.dense", width, width)


def write_weights(
    directory: Path, tensors: Mapping[str, F32], *, dtype: str = "F32", prefix: str = "", shards: int = 1
) -> None:
    """Write model.safetensors, or `shards` files and their index; `dtype` "mixed" alternates F16 and F32."""
    dtypes = ["F16", "F32"] if dtype == "mixed" else [dtype]
    named = {
        prefix + name: encoded(tensor, dtypes[i % len(dtypes)]) for i, (name, tensor) in enumerate(tensors.items())
    }
    if shards == 1:
        write_safetensors(directory / "model.safetensors", named)
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(named.items()) if i % shards == shard}
        write_safetensors(directory / file, part)
        weight_map |= dict.fromkeys(part, file)
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_safetensors(path: Path, tensors: Mapping[str, Encoded]) -> None:
    """Write a file as the format says: header length, JSON header padded to 8 bytes, data in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    write_raw_safetensors(path, json.dumps(header).encode(), b"".join(data for _, _, data in tensors.values()))


def write_raw_safetensors(path: Path, header: bytes, data: bytes, *, length: int | None = None) -> None:
    """Write a header and data that may be nonsense, with the header's true `length` or another."""
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)


def encoded(tensor: F32, dtype: str) -> Encoded:
    """Return a tensor rounded to `dtype` (F32, F16, BF16 or F64)."""
    arrays = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    data = to_bf16(tensor) if dtype == "BF16" else tensor.astype(arrays[dtype])
    return dtype, tensor.shape, data.tobytes()


def to_bf16(tensor: F32) -> NDArray[np.uint16]:
    """Return the bits of the nearest bf16, ties to even; finite values only."""
    bits = tensor.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_metadata(
    directory: Path,
    generation: str,
    *,
    pooling: str,
    maxseq: int,
    normalize: bool,
    prompts: Mapping[str, str] | None,
    width: int,
) -> None:
    """Write the files that sentence-transformers adds, in its "old" (before 5.4) or "new" spelling."""
    old = generation == "old"
    names = ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2]
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": folders[name], "type": _OLD_TYPE.format(name) if old else _NEW_TYPES[name]}
        for i, name in enumerate(names)
    ]
    write_json(directory / "modules.json", modules)
    if old:
        switches = {key: name == pooling for name, key in _OLD_POOLING_KEYS.items()}
        write_json(directory / "1_Pooling/config.json", {"word_embedding_dimension": width, **switches})
        write_json(directory / "sentence_bert_config.json", {"max_seq_length": maxseq, "do_lower_case": False})
        write_json(directory / "tokenizer_config.json", {"model_max_length": 10**30})
    else:
        settings = {"embedding_dimension": width, "pooling_mode": pooling, "include_prompt": True}
        write_json(directory / "1_Pooling/config.json", settings)
        write_json(directory / "sentence_bert_config.json", new_transformer_settings())
        write_json(directory / "tokenizer_config.json", {"model_max_length": maxseq, "truncation_side": "right"})
    if normalize and not old:
        sentence = "sentence_embedding"
        write_json(
            directory / "2_Normalize/config.json", {"module_input_name": sentence, "module_output_name": sentence}
        )
    settings = {"prompts": dict(prompts or {}), "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(
        directory / "config_sentence_transformers.json",
        settings if old else {"model_type": "SentenceTransformer", **settings},
    )


def new_transformer_settings() -> dict[str, Any]:
    """Return sentence_bert_config.json as sentence-transformers 6 writes it for a text encoder."""
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    return {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text},
        "module_output_name": "token_embeddings",
    }


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def change_json(path: Path, **changes: Any) -> None:
    """Set keys of the JSON object in a file; a key set to `...` is taken out."""
    values = {**json.loads(path.read_text()), **changes}
    write_json(path, {key: value for key, value in values.items() if value is not ...})


def unigram_tokenizer() -> Tokenizer:
    """Return a tokenizer of XLM-R's make: Unigram after WhitespaceSplit and Metaspace, <s> … </s> around."""
    pieces = ["▁", *(f"▁{word}" for word in _WORDS), "ing", "er", "ed", *_LETTERS, *_LETTERS.upper()]
    pieces = list(dict.fromkeys([*pieces, *_SYMBOLS]))
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(piece, -2.0 - 0.01 * rank) for rank, piece in enumerate(pieces)] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return _with_specials(tokenizer, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], first="<s>", last="</s>")


def wordpiece_tokenizer(
    *, lowercase: bool = True, strip_accents: bool | None = None, handle_chinese_chars: bool = True
) -> Tokenizer:
    """Return a tokenizer of BERT's make: WordPiece after BertNormalizer, [CLS] … [SEP] around."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, "##ing", "##er", "##ed", "tower", "cafe", "café"]
    for letter in [*_LETTERS, *_LETTERS.upper(), *_SYMBOLS, "İ", "Ü", "É"]:
        tokens += [letter, f"##{letter}"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=handle_chinese_chars, strip_accents=strip_accents, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _with_specials(tokenizer, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], first="[CLS]", last="[SEP]")


def _with_specials(tokenizer: Tokenizer, specials: list[str], *, first: str, last: str) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    return tokenizer


TOKENIZERS = {"xlmr": unigram_tokenizer, "bert": wordpiece_tokenizer}
