"""The command line as a user meets it, on a model of plain Python: arguments, options, refusals, exit codes."""

import os
import re
import resource
import subprocess
import sys

import pytest
from command_line import SECONDS, STUB, texts_of
from command_line import run_stub as run


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


# --- the command itself


def test_version_needs_no_numpy():
    script = (
        "import sys; from embed.cli import main; code = main(['--version']); sys.exit(code + ('numpy' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"embed \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["text", "--help"], ["info", "-h"], ["download", "--help"]])
def test_help_documents_the_exit_codes(arguments):
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert "130  interrupted" in out
    assert out.startswith("usage: embed ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command given; choose one of serve, text, info, executor, download"),
        (["embed"], "'embed' is not a command"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["text"], "no text given"),
        (["text", "demo"], "no text given for the model demo"),
        (["text", "--model"], "--model: expected one argument"),
        (["text", "--frobnicate", "x"], "unknown option --frobnicate"),
        (["text", "--frob=x", "x"], "unknown option --frob "),
        (["text", "-x", "demo", "x"], "unknown option -x"),
        (["text", "demo", "-hello"], "unknown option -hello (a text that looks like an option goes after --)"),
        (["text", "--model=", "x", "y"], "--model is empty; give it the path of a model folder"),
        (["text", "--model", " ", "x"], "--model is empty; give it the path of a model folder"),
        (["info", "--model="], "--model is empty; give it the path of a model folder"),
        (["text", "--model", "MODEL", "--pool", "median", "x"], "--pool: invalid choice: 'median'"),
        (["text", "--model", "MODEL", "--device", "tpu", "x"], "--device: invalid choice: 'tpu'"),
        (["text", "--model", "MODEL", "--format", "xml", "x"], "--format: invalid choice: 'xml'"),
        (["text", "--model", "MODEL", "--threads", "two", "x"], "--threads: invalid int value: 'two'"),
        (["text", "--model", "MODEL", "--maxseq", "2", "x"], "maxseq 2: this model takes 3 to 512 tokens"),
        (["text", "--model", "MODEL", "--prompt", "a", "--prompt-name", "b", "x"], "not allowed with"),
        (["text", "--model", "MODEL", "--prompt-name", "b", "x"], "prompt_name 'b' is not one of"),
        (["text", "--model", "MODEL", "-", "x"], "can't be mixed"),
        (["info", "a", "b"], "embed info takes one model"),
        (["download", "e5"], "'e5' can't be downloaded; say ORG/NAME"),
    ],
)
def test_a_refused_argument_is_one_sentence_and_exit_code_2(arguments, said, model):
    code, out, err = run(*[model if argument == "MODEL" else argument for argument in arguments])
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("embed: error: ")
    assert err.count("\n") == 1


def test_debug_shows_the_traceback_of_an_error():
    assert "Traceback" in run("text", "--debug", "nowhere", "x")[2]
    assert "Traceback" in run("--debug", "text", "nowhere", "x")[2]
    assert "Traceback" not in run("text", "nowhere", "x", "--", "--debug")[2]


def test_a_fault_of_our_own_is_one_line_too(model):
    assert run("text", model, "a fault") == (
        1,
        "",
        "embed: error: a fault in embed itself: ZeroDivisionError: division by zero (--debug shows where)\n",
    )


# --- which argument is what


def test_every_text_gives_one_csv_line_in_order(model):
    code, out, err = run("text", model, "Hello", "", "日本", "Hello")
    assert (code, err) == (0, "")
    assert texts_of(out) == ["Hello", "", "日本", "Hello"]


def test_options_stand_anywhere_among_the_arguments(model):
    assert texts_of(run("text", "--pool", "cls", model, "a", "--maxseq=9", "b")[1]) == ["a", "b"]


def test_texts_with_dashes(model):
    texts = ["-5", "- a", "-h i", "--", "--pool", "-hello", "-h", "--"]
    assert texts_of(run("text", model, *texts)[1]) == texts[:3] + texts[4:]


def test_model_option_and_variable_make_all_arguments_texts(model):
    assert texts_of(run("text", "--model", model, "a")[1]) == ["a"]
    assert texts_of(run("text", "--model", model, "a", "b")[1]) == ["a", "b"]
    assert texts_of(run("text", "a", "b", EMBED_MODEL=model)[1]) == ["a", "b"]
    assert texts_of(run("text", "--model", model, "a", EMBED_MODEL="/nowhere")[1]) == ["a"]


def test_a_blank_variable_names_no_model(model):
    assert texts_of(run("text", model, "a", EMBED_MODEL="  ")[1]) == ["a"]


def test_a_model_taken_as_a_text_is_pointed_out(model):
    code, out, err = run("text", "demo", "a", EMBED_MODEL=model)
    assert (code, texts_of(out)) == (0, ["demo", "a"])
    assert err == f"embed: warning: 'demo' is taken as a text, since EMBED_MODEL names the model ({model})\n"


def test_with_no_model_one_sentence_says_how_to_get_one():
    code, out, err = run("text", "Hello, world!")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(way in err for way in ('embed text demo "Hello, world!"', "--model", "EMBED_MODEL"))


def test_a_first_argument_that_is_no_model_points_to_the_option():
    code, out, err = run("text", "Hello", "world")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "there is no model folder 'Hello'" in err
    assert "--model MODEL makes all of them texts" in err


def test_a_wrong_model_option_does_not_point_to_itself():
    code, _, err = run("text", "--model", "Hello", "world")
    assert code == 3
    assert "first of several" not in err


def test_an_argument_that_is_not_utf8_is_refused(model):
    code, out, err = run("text", model, "fine", b"caf\xe9")
    assert (code, out) == (1, "")
    assert "'caf\\udce9' is not valid UTF-8" in err


# --- places without a home


def test_a_local_model_needs_no_home_and_no_writing(model):
    done = subprocess.run(
        [sys.executable, "-B", STUB, "text", model, "a"],
        cwd="/",
        env={"PATH": os.environ["PATH"], "TMPDIR": "/nonexistent"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),  # a byte into any file fails; pipes don't
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert texts_of(done.stdout) == ["a"]
