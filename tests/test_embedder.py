"""The Python API on tiny models: shapes, options, errors by index, truncation, threads, fork, Ctrl-C, memory."""

import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tiny

import embed
from embed.tokenizer import TokenizedText

FOREIGN = "avx2" if platform.machine() == "aarch64" else "neon"  # an instruction set of the other architecture
TEXTS = ["hello world", "the quick fox", "", "a", "of " * 12]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    prompts = {"query": "query: ", "passage": "passage: "}
    return tiny.make("xlmr", tmp_path_factory.mktemp("models") / "tiny", prompts=prompts)


@pytest.fixture(scope="module")
def model(directory):
    with embed.load(directory) as loaded:
        yield loaded


# --- encode


def test_a_list_gives_rows_and_a_string_gives_one_row(model):
    rows = model.encode(TEXTS)
    assert (rows.shape, rows.dtype) == ((len(TEXTS), model.dimension), np.float32)
    assert model.encode(TEXTS[0]).tobytes() == rows[0].tobytes()
    assert model.encode(TEXTS[0]).shape == (model.dimension,)


def test_no_texts_give_no_rows(model):
    assert model.encode([]).shape == (0, model.dimension)


@pytest.mark.parametrize("kind", [tuple, iter, np.array])
def test_any_iterable_of_strings_will_do(model, kind):
    assert model.encode(kind(TEXTS)).tobytes() == model.encode(TEXTS).tobytes()


def test_rows_stand_in_the_order_of_the_texts(model):
    texts = [f"{word} " * n for n, word in itertools.product((3, 1, 7, 2), ("fox", "dog", "hello"))]
    rows = model.encode(texts)
    for text, row in zip(texts, rows, strict=True):
        assert model.encode(text).tobytes() == row.tobytes()


def test_more_texts_than_one_forward_takes_keep_order_and_bytes(model):
    texts = [f"hello {i}" for i in range(2000)]  # some 10,000 tokens: several chunks
    rows = model.encode(texts)
    for i in (0, 1, 999, 1999):
        assert model.encode(texts[i]).tobytes() == rows[i].tobytes()


def test_vectors_have_length_one_unless_told_otherwise(directory, model):
    assert np.abs(np.linalg.norm(model.encode(TEXTS), axis=1) - 1).max() < 1e-6
    raw = model.encode(TEXTS, normalize=False)
    assert (np.abs(np.linalg.norm(raw, axis=1) - 1) > 1e-2).all()
    with embed.load(directory, normalize=False) as unnormalized:
        assert unnormalized.encode(TEXTS).tobytes() == raw.tobytes()
        assert unnormalized.encode(TEXTS, normalize=True).tobytes() == model.encode(TEXTS).tobytes()


@pytest.mark.parametrize(
    ("texts", "index", "kind"),
    [(["a", 17], 1, "int"), ([None], 0, "NoneType"), (["a", "b", ["c"]], 2, "list"), ([b"bytes"], 0, "bytes")],
)
def test_what_is_not_a_string_is_a_type_error_with_its_index(model, texts, index, kind):
    with pytest.raises(TypeError, match=f"text {index} is {kind}") as caught:
        model.encode(texts)
    assert caught.value.index == index
    with pytest.raises(TypeError, match=f"text {index} is {kind}"):
        model.encode(texts, prompt="query: ")


@pytest.mark.parametrize("texts", [b"bytes", {"text": "a"}, {"a", "b"}, None, 5, np.array("a")])
def test_what_is_no_list_of_texts_is_refused_by_type(model, texts):
    with pytest.raises(TypeError, match=f"texts is {type(texts).__name__}; pass a list"):
        model.encode(texts)


def test_tokenize_does_not_take_a_string_for_a_list_of_characters(model):
    with pytest.raises(TypeError, match="texts is str; pass a list"):
        model.tokenize("ab")


@pytest.mark.parametrize("ids", [[], [0, 99_999, 2], [0, -1, 2], [0] * 33])
def test_ids_that_this_model_cannot_have_made_are_refused_by_index(model, ids):
    good = model.tokenize(["a"])[0]
    with pytest.raises(embed.TextError, match="text 1 was not tokenised by this model") as caught:
        model.encode_tokens([good, TokenizedText(np.array(ids, np.int32), len(ids))])
    assert caught.value.index == 1


def test_a_lone_surrogate_is_named_by_index(model):
    with pytest.raises(embed.TextError, match=r"text 1.*surrogate") as caught:
        model.encode(["a", "b \ud800"])
    assert caught.value.index == 1


# --- truncation


def test_tokenize_tells_what_was_cut_and_from_how_many_tokens(model):
    short, long = model.tokenize(["a", "a " * 100])
    assert not short.truncated
    assert (long.truncated, len(long.ids), long.tokens) == (True, model.maxseq, 102)


def test_encode_warns_of_truncation_with_the_count(model):
    with pytest.warns(embed.TruncationWarning, match=r"2 of 3 texts were cut to 32 tokens.*text 2, had 202"):
        rows = model.encode(["a " * 100, "a", "a " * 200])
    assert rows[0].tobytes() == rows[2].tobytes()  # the same thirty tokens and the final </s>


def test_maxseq_cuts_shorter(directory, model):
    with embed.load(directory, maxseq=5) as short:
        assert short.maxseq == 5
        (text,) = short.tokenize(["a a a a a a"])
        full = model.tokenize(["a a a a a a"])[0]
        assert text.ids.tolist() == [*full.ids[:4].tolist(), full.ids[-1]]


def test_maxseq_may_be_a_numpy_integer(directory):
    with embed.load(directory, maxseq=np.int64(8)) as model:
        assert model.maxseq == 8


@pytest.mark.parametrize("maxseq", [2, 0, -1, 33, 2.5, True, "8"])
def test_maxseq_out_of_range_is_refused_naming_the_limit(directory, maxseq):
    with pytest.raises(embed.OptionError, match="32" if type(maxseq) is int else "whole number"):
        embed.load(directory, maxseq=maxseq)


# --- prompts


def test_a_prompt_is_put_before_the_text_by_name_or_as_text(model):
    plain = model.encode("query: hello world")
    assert model.encode("hello world", prompt_name="query").tobytes() == plain.tobytes()
    assert model.encode("hello world", prompt="query: ").tobytes() == plain.tobytes()
    assert model.encode("hello world").tobytes() != plain.tobytes()


def test_an_unknown_prompt_name_lists_the_names(model):
    with pytest.raises(embed.OptionError, match=r"'nope'.*passage, query"):
        model.encode("x", prompt_name="nope")


def test_prompt_and_prompt_name_together_are_refused(model):
    with pytest.raises(embed.OptionError, match="not both"):
        model.encode("x", prompt="query: ", prompt_name="query")


@pytest.mark.parametrize("options", [{"prompt": 3}, {"prompt_name": ["query"]}])
def test_a_prompt_that_is_not_a_string_is_refused(model, options):
    with pytest.raises(embed.OptionError, match="pass a string"):
        model.encode("x", **options)


def test_a_surrogate_in_a_prompt_is_the_prompts_fault(model):
    with pytest.raises(embed.OptionError, match=r"the prompt .* has a lone surrogate"):
        model.encode("x", prompt="\udc80")


@pytest.mark.parametrize("normalize", ["false", 1, np.array([1, 0])])
def test_normalize_is_true_or_false(directory, model, normalize):
    with pytest.raises(embed.OptionError, match="neither True nor False"):
        model.encode("x", normalize=normalize)
    with pytest.raises(embed.OptionError, match="neither True nor False"):
        embed.load(directory, normalize=normalize)


def test_the_default_prompt_applies_unless_another_is_given(tmp_path):
    directory = tiny.make("xlmr", tmp_path / "model", prompts={"query": "query: "})
    file = directory / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "default_prompt_name": "query"}))
    with embed.load(directory) as model:
        assert model.encode("hello").tobytes() == model.encode("query: hello", prompt="").tobytes()
        assert model.encode("hello", prompt="").tobytes() != model.encode("hello").tobytes()


# --- options and models


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pool": "median"}, "median.*cls, mean, max, mean_sqrt_len, weightedmean, lasttoken"),
        ({"device": "tpu"}, "tpu.*auto, cpu, cuda"),
        ({"threads": 0}, "threads"),
        ({"threads": -2}, "threads"),
        ({"threads": 1.5}, "threads"),
    ],
)
def test_a_bad_option_is_one_sentence_with_what_is_accepted(directory, options, words):
    with pytest.raises(embed.OptionError, match=words):
        embed.load(directory, **options)


def test_cuda_is_refused_by_name(directory):
    with pytest.raises(embed.DeviceError, match="cuda"):
        embed.load(directory, device="cuda")


@pytest.mark.parametrize(
    ("name", "words"),
    [("sse9", "sse9 is not an instruction set"), (FOREIGN, f"{FOREIGN}: this build has no {FOREIGN}")],
)
def test_an_instruction_set_that_cannot_run_is_refused(directory, monkeypatch, name, words):
    monkeypatch.setenv("EMBED_ISA", name)
    with pytest.raises(embed.DeviceError, match=words):
        embed.load(directory)


def test_the_device_names_the_instruction_set_that_runs(directory, monkeypatch, isa):
    monkeypatch.setenv("EMBED_ISA", isa)
    with embed.load(directory) as model:
        assert model.device == f"cpu {isa}"


def test_a_missing_directory_is_one_sentence(tmp_path):
    with pytest.raises(embed.ModelError, match="nowhere"):
        embed.load(tmp_path / "nowhere")


@pytest.mark.parametrize("row", [[np.nan], [1e30, -2e29], [3e38]], ids=["nan", "1e30", "3e38"])
def test_a_row_that_ends_in_no_numbers_is_an_error_with_the_index(tmp_path, row):
    """NaN in the weights, and numbers so large that a LayerNorm's sum of squares overflows."""
    directory = tiny.make("xlmr", tmp_path / "model")
    tensors = tiny.random_tensors(json.loads((directory / "config.json").read_text()))
    (fox,) = {id for id in _ids(directory, "fox") if id not in _ids(directory, "a")}
    tensors["embeddings.word_embeddings.weight"][fox] = np.resize(row, tiny.WIDTH)
    tiny.write_weights(directory, tensors)
    with embed.load(directory) as model:
        assert np.isfinite(model.encode(["a", "the"])).all()
        with pytest.raises(embed.VectorError, match="text 1") as caught:
            model.encode(["a", "fox", "the"])
        assert caught.value.index == 1


def _ids(directory: Path, text: str) -> list[int]:
    with embed.load(directory) as model:
        return model.tokenize([text])[0].ids.tolist()


def test_rows_before_the_padding_position_are_never_read(tmp_path):
    """XLM-R's first token is at pad_token_id + 1 (B7): rows 0 and 1 may hold anything."""
    plain = tiny.make("xlmr", tmp_path / "plain")
    tensors = tiny.random_tensors(json.loads((plain / "config.json").read_text()))
    odd, moved = tmp_path / "odd", tmp_path / "moved"
    for directory, rows in ((odd, slice(0, 2)), (moved, slice(2, 3))):
        tiny.make("xlmr", directory)
        changed = {name: tensor.copy() for name, tensor in tensors.items()}
        changed["embeddings.position_embeddings.weight"][rows] = 1e6
        tiny.write_weights(directory, changed)
    vectors = []
    for directory in (plain, odd, moved):
        with embed.load(directory) as model:
            vectors.append(model.encode(TEXTS))
    assert vectors[0].tobytes() == vectors[1].tobytes()
    assert (vectors[0] != vectors[2]).any(axis=1).all()


# --- life


def test_after_close_a_call_is_one_sentence(directory):
    model = embed.load(directory)
    model.close()
    model.close()
    with pytest.raises(embed.StateError, match="closed"):
        model.encode("x")


def test_several_threads_get_the_bytes_they_would_get_alone(model):
    texts = [f"{word} {i}" for i in range(40) for word in ("fox", "hello world the")]
    want = [model.encode(text).tobytes() for text in texts]
    results = {}

    def call(name):
        results[name] = [row.tobytes() for row in model.encode(texts)] + [model.encode(texts[name]).tobytes()]

    callers = [threading.Thread(target=call, args=(name,)) for name in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert results == {name: [*want, want[name]] for name in range(8)}


def run(program: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_forked_child_gets_a_sentence_and_can_load_the_model_again(directory):
    done = run(
        """
        import os, sys
        import embed
        model = embed.load(sys.argv[1], threads=2)
        want = model.encode("hello").tobytes()
        if os.fork() == 0:
            try:
                model.encode("hello")
            except embed.StateError as ex:
                print(ex, flush=True)
            again = embed.load(sys.argv[1], threads=2)
            print(again.encode("hello").tobytes() == want, flush=True)
            sys.exit()
        print(os.wait()[1], model.encode("hello").tobytes() == want)
        """,
        directory,
    )
    assert done.stderr == ""
    sentence, again, parent = done.stdout.splitlines()
    assert "before a fork" in sentence
    assert (again, parent) == ("True", "0 True")


def test_ctrl_c_ends_a_long_encode_within_a_second(directory):
    program = """
        import sys, time
        import embed
        model = embed.load(sys.argv[1])
        texts = ["hello world the quick fox"] * 200_000
        print("ready", flush=True)
        try:
            while True:
                model.encode(texts)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            print(model.encode("a").shape, flush=True)  # and the model still works
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(directory)], stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(60, child.kill)  # a hang fails too
    watchdog.start()
    with child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(1)
        start = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - start < 1
        assert child.stdout.readline() == "(32,)\n"
        assert child.wait(20) == 0
    watchdog.cancel()


def test_lengths_never_seen_before_take_no_more_memory(directory):
    done = run(
        """
        import sys, warnings
        import embed

        def resident_kb():
            with open("/proc/self/status") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

        model = embed.load(sys.argv[1])
        for n in range(50):
            model.encode(["fox " * (n % 30)] * (n + 1))
        before = resident_kb()
        for n in range(600):
            model.encode(["fox " * (n % 31)] * (1 + n % 67))
        print(resident_kb() / before)
        """,
        directory,
    )
    assert float(done.stdout) <= 1.02


def test_a_process_without_home_or_writable_folder_embeds_a_local_directory(directory):
    done = subprocess.run(
        [sys.executable, "-c", f"import embed; print(embed.load({str(directory)!r}).encode('a').shape)"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "(32,)\n")
