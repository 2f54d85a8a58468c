"""Check an installed embed-server from inside its environment, with the source tree out of the way.

    cd somewhere-else && VENV/bin/python -I check_install.py

Run by build.py on the release wheel and by .ci/run on `pip install .`. It needs only what the base install brings,
checks versions, files, dependencies and real use, and prints the megabytes installed. Exit code 1 and one sentence
otherwise.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib import import_module, metadata
from pathlib import Path

DISTRIBUTION = "embed-server"
DATA_FILES = ("embed/py.typed", "embed/cpu/_native.pyi")
UNWANTED = {"torch", "transformers", "onnxruntime", "sentence-transformers"}
WIDTH, INNER, VOCABULARY = 32, 64, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", ",", "!")


def require(fact: bool, sentence: str) -> None:
    if not fact:
        sys.exit(f"check_install: {sentence}")


def run(*command: str) -> str:
    """Return what `command` prints; PYTHONPATH could bring the source tree back, so it is not passed on."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    require(done.returncode == 0, f"{' '.join(command)} exited {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def command(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


def check_versions() -> str:
    """The command, the metadata and the module say the same version."""
    import embed

    version = metadata.version(DISTRIBUTION)
    require(embed.__version__ == version, f"embed.__version__ is {embed.__version__}, the metadata say {version}")
    said = run(command("embed"), "--version").split()
    require(version in said, f"embed --version prints {said}, the metadata say {version}")
    return version


def check_files() -> None:
    """Everything lies inside this environment, data files included."""
    import_module("embed.cpu._native")
    home = Path(sysconfig.get_path("platlib"))
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "embed":
            file = Path(str(module.__file__))
            require(file.is_relative_to(home), f"{name} was imported from {file}, outside of {home}")
    for name in DATA_FILES:
        require((home / name).is_file(), f"{name} is missing from the installed package")


def check_dependencies() -> list[str]:
    """`pip list` holds neither PyTorch nor what stands on it, and `pip check` finds no conflict."""
    run(sys.executable, "-m", "pip", "check")
    names = [row["name"].lower() for row in json.loads(run(sys.executable, "-m", "pip", "list", "--format=json"))]
    found = sorted(UNWANTED.intersection(names))
    require(not found, f"pip list holds {', '.join(found)}")
    return sorted(set(names) - {"pip", "setuptools", "wheel"})


def tensors() -> dict[str, tuple[int, ...]]:
    """Return the shapes of a one-layer BertModel."""
    layer = "encoder.layer.0"
    matrices = {
        f"{layer}.attention.self.query": (WIDTH, WIDTH),
        f"{layer}.attention.self.key": (WIDTH, WIDTH),
        f"{layer}.attention.self.value": (WIDTH, WIDTH),
        f"{layer}.attention.output.dense": (WIDTH, WIDTH),
        f"{layer}.intermediate.dense": (INNER, WIDTH),
        f"{layer}.output.dense": (WIDTH, INNER),
    }
    norms = ("embeddings.LayerNorm", f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm")
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": (16, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    for name, shape in matrices.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    return shapes


def write_model(folder: Path) -> None:
    """Write a one-layer BERT with random weights and a WordPiece tokenizer of eight pieces."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(shape, dtype=np.float32) / 4 for name, shape in tensors().items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
    }
    (folder / "config.json").write_text(json.dumps(config))
    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))


def check_use() -> None:
    """`embed text` gives one unit vector a text, and the same bytes however often it is asked."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        printed = run(command("embed"), "text", folder, "Hello, world!", "hello")
        again = run(command("embed"), "text", folder, "hello")
    rows = [[float(value) for value in row] for row in csv.reader(io.StringIO(printed))]
    require([len(row) for row in rows] == [WIDTH, WIDTH], f"embed text printed {[len(row) for row in rows]} values")
    for row in rows:
        norm = math.sqrt(sum(value * value for value in row))
        require(abs(norm - 1) < 1e-6, f"embed text printed a vector of norm {norm}")
    require(rows[0] != rows[1], "embed text printed the same vector for two texts")
    require(printed.splitlines()[1] == again.strip(), "a text's vector changed with its neighbour")


def megabytes() -> float:
    """Return the size of everything in site-packages but pip and setuptools, in 10⁶ bytes."""
    home = Path(sysconfig.get_path("platlib"))
    tools = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "wheel")
    files = (file for file in home.rglob("*") if not file.relative_to(home).parts[0].startswith(tools))
    return sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink()) / 1e6


def main() -> None:
    version = check_versions()
    check_files()
    names = check_dependencies()
    check_use()
    print(f"{DISTRIBUTION} {version} works from {sys.prefix}")
    print(f"megabytes installed: {megabytes():.0f}, in {len(names)} packages: {', '.join(names)}")


if __name__ == "__main__":
    main()
