"""`embed text` as a process on tiny models: what comes out is what the Python API computes."""

import io
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny
from command_line import SECONDS, environment, run

import embed

TEXTS = ["hello world", "", "the quick fox", "東京 hello", "hello world", "a <pad> b", "of " * 60]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlmr")
    return tiny.make("xlmr", folder, prompts={"query": "query: "}, dtype="F16", pooling="mean")


@pytest.fixture(scope="module")
def embedder(model):
    with embed.load(model) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def vectors(embedder):
    with pytest.warns(embed.TruncationWarning):
        return embedder.encode(TEXTS)


def read_csv(out):
    return np.array([[np.float32(word) for word in line.split(b",")] for line in out.splitlines()])


def test_csv_json_and_npy_hold_the_bits_of_the_python_api(model, vectors):
    code, csv, err = run("text", model, *TEXTS)
    assert code == 0
    assert err == "embed: warning: 1 of 7 texts was cut to 32 tokens (--maxseq); the longest had 62\n"
    assert read_csv(csv).tobytes() == vectors.tobytes()
    rows = json.loads(run("text", model, *TEXTS, "--format", "json")[1])
    assert np.array(rows, np.float32).tobytes() == vectors.tobytes()
    assert np.load(io.BytesIO(run("text", model, *TEXTS, "--format=npy")[1])).tobytes() == vectors.tobytes()


def test_standard_input_gives_the_bits_of_arguments(model, vectors):
    code, out, err = run("text", model, "-", stdin="\n".join(TEXTS * 200) + "\n")
    assert code == 0
    assert err.startswith("embed: warning: 200 of 1,400 texts were cut to 32 tokens")
    assert read_csv(out).tobytes() == np.tile(vectors, (200, 1)).tobytes()


def test_an_unknown_prompt_name_is_refused_before_standard_input_is_read(model):
    code, out, err = run("text", "--model", model, "--prompt-name", "nope", "-", stdin="")
    assert (code, out) == (2, b"")
    assert "'nope' is not one of this model's prompts (query)" in err


@pytest.mark.parametrize(
    ("stdin", "texts"),
    [
        ("a\r\nthe fox\r\n", ["a", "the fox"]),
        ("a\nno end", ["a", "no end"]),
        ("a\r\nno end", ["a", "no end"]),
        ("\n", [""]),
        ("\n\r\n\n", ["", "", ""]),
        (" \n\t\n", [" ", "\t"]),
        ("a\0b\n\0\n", ["a\0b", "\0"]),
        ("", []),
    ],
)
def test_lines_are_the_texts_that_python_would_take(stdin, texts, model, embedder):
    code, out, err = run("text", model, "-", stdin=stdin)
    assert (code, err, len(out.splitlines())) == (0, "", len(texts))
    assert read_csv(out).tobytes() == embedder.encode(texts).tobytes()


def test_a_file_is_read_like_a_pipe(model, embedder, tmp_path):
    (tmp_path / "texts").write_bytes(b"a\r\n\nno end")
    command = [sys.executable, "-m", "embed", "text", str(model), "-"]
    with (tmp_path / "texts").open() as file:
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=SECONDS, env=environment())
    assert read_csv(done.stdout).tobytes() == embedder.encode(["a", "", "no end"]).tobytes()


def test_json_is_read_by_other_programs(model):
    script = r"""printf 'a\nb\n' | "$0" -m embed text "$1" - --format json | "$0" -m json.tool"""
    command = ["sh", "-c", script, sys.executable, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment())
    assert done.stderr == ""
    assert [len(row) for row in json.loads(done.stdout)] == [tiny.WIDTH] * 2


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
        (["--threads", "0"], 2, "threads 0: this machine takes 1 to"),
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
