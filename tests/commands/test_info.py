"""`embed info`: what it says of a folder is what the files say and what a loaded model then holds."""

import json
import re

import numpy as np
import pytest
import tiny
from command_line import run

import embed
from embed.cli import main
from embed.commands import info
from embed.cuda.devices import Cuda, CudaDevice


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlmr")
    return tiny.make("xlmr", folder, prompts={"query": "query: "}, dtype="F16", pooling="mean")


def test_info_names_what_was_read_from_which_file(model):
    code, out, err = run("info", model, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)["model"]
    assert facts["architecture"] == "XLMRobertaModel"
    sizes = {"layers": tiny.LAYERS, "width": tiny.WIDTH, "heads": tiny.HEADS, "inner": tiny.INNER}
    assert sizes.items() <= facts["sizes"].items()
    assert facts["pooling"] == {"name": "mean", "source": "1_Pooling/config.json"}
    assert facts["maxseq"] == {"tokens": 32, "source": "sentence_bert_config.json", "limit": 32}
    assert facts["prompts"] == {"query": "query: "}
    assert facts["weights"]["dtypes"] == ["F16"]
    size = (model / "model.safetensors").stat().st_size
    assert facts["weights"]["files"] == [{"name": "model.safetensors", "size_bytes": size}]


def test_the_report_is_for_people(model):
    out = run("info", model)[1].decode()
    for line in (
        r"architecture +XLMRobertaModel, gelu \(config.json\)",
        r"weights +F16, \d+ kB \(model.safetensors\)",
        r"pooling +mean \(1_Pooling/config.json\)",
        r"maximum length +32 tokens \(sentence_bert_config.json\); --maxseq up to 32",
        r"prompt +query: 'query: ' \(config_sentence_transformers.json\)",
        r"threads +\d+ \(.+\)",
        r"CUDA +not used: the CUDA backend is not in this version",
    ):
        assert re.search(f"^  {line}$", out, re.MULTILINE), line


def test_info_foretells_the_memory_of_the_loaded_model(model):
    from embed.cpu.backend import CpuBackend

    memory = json.loads(run("info", model, "--json")[1])["model"]["memory"]
    with embed.load(model) as embedder:
        backend = embedder.engine._engine._backend
        assert isinstance(backend, CpuBackend)
        held, workspace = backend.weight_bytes, backend._live.workspace_bytes
    assert (memory["packed_bytes"], memory["workspace_bytes"]) == (held, workspace)


def test_memory_is_unknown_where_no_model_can_be_loaded(model):
    code, out, _ = run("info", model, "--json", EMBED_ISA="avx9")
    assert (code, json.loads(out)["model"]["memory"]) == (0, None)
    assert b"unknown, since no instruction set can be used here" in run("info", model, EMBED_ISA="avx9")[1]


def test_info_says_which_instruction_set_runs_and_why_not_another():
    from embed.cpu import _native

    facts = json.loads(run("info", "--json")[1])
    assert "model" not in facts
    sets = _native.instruction_sets()
    best = next(name for name, missing in sets.items() if missing is None)
    assert facts["machine"]["instruction_set"] == {
        "used": best,
        "reason": "the best this CPU runs",
        "missing": sets,
    }
    forced = json.loads(run("info", "--json", EMBED_ISA="scalar")[1])["machine"]["instruction_set"]
    assert (forced["used"], forced["reason"]) == ("scalar", "EMBED_ISA")
    wrong = json.loads(run("info", "--json", EMBED_ISA="avx9")[1])["machine"]["instruction_set"]
    assert wrong["used"] is None
    assert "EMBED_ISA=avx9" in wrong["reason"]


def test_of_two_towers_the_encoder_that_runs_is_described(tmp_path):
    folder = tiny.make("bert", tmp_path / "model", dtype="F16")
    width = tiny.WIDTH
    tensors = {"image.embeddings.word_embeddings.weight": tiny.encoded(np.zeros((4, width), np.float32), "BF16")}
    config = tiny.default_config("bert", json.loads((folder / "config.json").read_text())["vocab_size"])
    for name, tensor in tiny.random_tensors(config).items():
        tensors[f"text.{name}"] = tiny.encoded(tensor, "F16")
    tiny.write_safetensors(folder / "model.safetensors", tensors)
    assert json.loads(run("info", folder, "--json")[1])["model"]["weights"]["dtypes"] == ["F16"]


@pytest.mark.parametrize(
    ("cuda", "line"),
    [
        (Cuda([CudaDevice("NVIDIA H200", 150_000_000_000, "9.0")], None), "NVIDIA H200, 150,000 MB, compute .* 9.0"),
        (Cuda([], "CuPy is not installed"), "no device seen: CuPy is not installed"),
    ],
)
def test_devices_are_listed_though_this_version_does_not_use_them(cuda, line, monkeypatch, capfd):
    monkeypatch.setattr(info, "cuda_devices", lambda: cuda)
    assert main(["info"]) == 0
    out = capfd.readouterr().out
    assert re.search(rf"^  CUDA +not used: the CUDA backend is not in this version\n +{line}$", out, re.MULTILINE)


def test_an_empty_model_is_not_passed_over(model):
    code, out, err = run("info", "", EMBED_MODEL=str(model))
    assert (code, out) == (3, b"")
    assert "'' is not a model" in err


def test_info_takes_its_model_from_the_environment_too(model):
    assert json.loads(run("info", "--json", EMBED_MODEL=str(model))[1])["model"]["folder"] == str(model)
