"""`embed text` and `embed info` as processes on tiny models: what comes out is what the Python API computes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny

import embed
from embed.cli import main
from embed.commands import info
from embed.cuda.devices import Cuda, CudaDevice

TEXTS = ["hello world", "", "the quick fox", "東京 hello", "hello world", "a <pad> b", "of " * 60]
SECONDS = 30


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlmr")
    return tiny.make("xlmr", folder, prompts={"query": "query: "}, dtype="F16", pooling="mean")


@pytest.fixture(scope="module")
def vectors(model):
    with embed.load(model) as embedder, pytest.warns(embed.TruncationWarning):
        return embedder.encode(TEXTS)


def run(*arguments, stdin="", **settings):
    done = subprocess.run(
        [sys.executable, "-m", "embed", *map(str, arguments)],
        input=stdin.encode(),
        capture_output=True,
        timeout=SECONDS,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("EMBED_")}, **settings},
    )
    return done.returncode, done.stdout, done.stderr.decode()


def read_csv(out):
    return np.array([[np.float32(word) for word in line.split(b",")] for line in out.splitlines()])


def test_csv_json_and_npy_hold_the_bits_of_the_python_api(model, vectors):
    code, csv, err = run("text", model, *TEXTS)
    assert code == 0
    assert err == "embed: 1 of 7 texts was cut to 32 tokens (--maxseq); the longest had 62\n"
    assert read_csv(csv).tobytes() == vectors.tobytes()
    rows = json.loads(run("text", model, *TEXTS, "--format", "json")[1])
    assert np.array(rows, np.float32).tobytes() == vectors.tobytes()
    assert np.load(io.BytesIO(run("text", model, *TEXTS, "--format=npy")[1])).tobytes() == vectors.tobytes()


def test_standard_input_gives_the_bits_of_arguments(model, vectors):
    code, out, err = run("text", model, "-", stdin="\n".join(TEXTS * 200) + "\n")
    assert code == 0
    assert err.startswith("embed: 200 of 1,400 texts were cut to 32 tokens")
    assert read_csv(out).tobytes() == np.tile(vectors, (200, 1)).tobytes()


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads_and_instruction_set_change_no_byte(isa, threads, model, vectors):
    out = run("text", model, "--threads", threads, *TEXTS, EMBED_ISA=isa)[1]
    assert read_csv(out).tobytes() == vectors.tobytes()


def test_options_mean_what_they_mean_in_python(model):
    with embed.load(model, pool="max", normalize=False, maxseq=8) as embedder:
        expected = embedder.encode(["hello world"], prompt_name="query")
    out = run("text", model, "hello world", "--pool=max", "--no-normalize", "--maxseq=8", "--prompt-name=query")[1]
    assert read_csv(out).tobytes() == expected.tobytes()
    assert abs(np.linalg.norm(expected) - 1) > 0.1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--maxseq", "2"], 2, "maxseq 2: this model takes 3 to 32 tokens"),
        (["--maxseq", "33"], 2, "maxseq 33: this model takes 3 to 32 tokens"),
        (["--threads", "0"], 2, "threads 0 is not a whole number from 1 to"),
        (["--prompt-name", "passage"], 2, "prompt_name 'passage' is not one of this model's prompts (query)"),
        (["--device", "cuda"], 2, "device 'cuda'"),
    ],
)
def test_options_that_the_model_refuses(arguments, code, said, model):
    result, out, err = run("text", "--model", model, *arguments, "hello")
    assert (result, out, err.count("\n")) == (code, b"", 1)
    assert said in err


def test_an_instruction_set_that_is_not_there(model):
    code, out, err = run("text", model, "hello", EMBED_ISA="avx9")
    assert (code, out) == (2, b"")
    assert err.startswith("embed: error: EMBED_ISA=avx9 is not an instruction set")


def test_a_guessed_pooling_is_announced(tmp_path):
    tiny.make("bert", tmp_path / "bare", metadata=None)
    code, _, err = run("text", tmp_path / "bare", "hello")
    assert code == 0
    assert re.fullmatch(r"embed: warning: .*cls.*mean.*\n", err)
    assert run("text", tmp_path / "bare", "hello", "--pool", "mean")[2] == ""


@pytest.mark.parametrize("command", ["text", "info"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: tiny.change_json(folder / "config.json", hidden_act="mish"), "hidden_act"),
        (lambda folder: tiny.change_json(folder / "config.json", num_hidden_layers=3), "encoder.layer.2."),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_one_sentence_and_exit_code_3(damage, said, command, tmp_path):
    folder = tiny.make("bert", tmp_path / "model")
    damage(folder)
    code, out, err = run(command, "--model", folder, *["hello"][: command == "text"])
    assert (code, out, err.count("\n")) == (3, b"", 1)
    assert err.startswith("embed: error: ")
    assert said in err


def test_ctrl_c_ends_a_stream_at_once_though_nobody_reads_its_output(model):
    producer = subprocess.Popen(["yes", "hello world"], stdout=subprocess.PIPE)
    command = [sys.executable, "-m", "embed", "text", str(model), "-"]
    pipes = {"stdin": producer.stdout, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        producer.stdout.close()
        process.stdout.read(1)  # vectors are coming, and soon fill the pipe
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert process.wait(SECONDS) == 130
        assert time.monotonic() - begin < 1
        assert process.stderr.read() == b""
    producer.wait(SECONDS)


# --- embed info


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
        backend = embedder._engine._backend
        assert isinstance(backend, CpuBackend)
        held, workspace = backend.weight_bytes, backend._live.workspace_bytes
    page = 2 << 20  # arenas are whole huge pages
    assert memory["packed_bytes"] <= held <= memory["packed_bytes"] * 1.6 + page  # tiny matrices fill panels badly
    assert memory["workspace_bytes"] <= workspace <= memory["workspace_bytes"] * 1.6 + page


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
