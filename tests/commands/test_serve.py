"""The command line of `embed serve`: flags and variables, what is refused and in which order, what is warned of."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys

import pytest

from embed import models
from embed.cli import main
from embed.server import serve as service
from embed.server.settings import Settings, variable_of

FLAGS = [  # setting, flag, value in the variable, value
    ("addr", ["--addr", "127.0.0.1:0"], "127.0.0.1:0", "127.0.0.1:0"),
    ("token", ["--token", "s3cret"], "s3cret", "s3cret"),
    ("token_file", ["--token-file", "TOKEN"], "TOKEN", "TOKEN"),
    ("model_name", ["--model-name", "mine"], "mine", "mine"),
    ("maxseq", ["--maxseq", "16"], "16", 16),
    ("pool", ["--pool", "cls"], "cls", "cls"),
    ("no_normalize", ["--no-normalize"], "1", True),
    ("device", ["--device", "cpu"], "cpu", "cpu"),
    ("threads", ["--threads", "1"], "1", 1),
    ("max_texts", ["--max-texts", "7"], "7", 7),
    ("log_level", ["--log-level", "info"], "info", "info"),
    ("access_log", ["--access-log"], "true", True),
    ("graceful", ["--graceful", "5"], "5", 5),
    ("warmup", ["--no-warmup"], "off", False),
    ("unload_after", ["--unload-after", "2.5"], "2.5", 2.5),
    ("in_process", ["--in-process"], "1", True),
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Run in a folder with a model of a name alone and a token file, with no variable set but for a free port."""
    for setting in dataclasses.fields(Settings):
        monkeypatch.delenv(variable_of(setting.name), raising=False)
    monkeypatch.setenv("EMBED_ADDR", "127.0.0.1:0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TOKEN").write_text("t0ken\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")


@pytest.fixture
def served(monkeypatch):
    """The settings that the service would run with, instead of running it."""
    seen = []
    monkeypatch.setattr(service, "serve", lambda settings, listener: seen.append((settings, listener)) or 0)
    yield seen
    for _, listener in seen:
        listener.socket.close()


@pytest.fixture
def busy():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def run(capsys, *arguments):
    code = main(["serve", *arguments])
    return code, capsys.readouterr().err


# --- flags and variables


def test_every_setting_is_listed_here():
    assert {"model", *(name for name, *_ in FLAGS)} == {setting.name for setting in dataclasses.fields(Settings)}


@pytest.mark.parametrize(("name", "flag", "text", "value"), FLAGS, ids=[flag[0] for flag in FLAGS])
def test_each_setting_is_a_flag_and_a_variable(capsys, monkeypatch, served, name, flag, text, value):
    assert run(capsys, "model", *flag) == (0, "")
    monkeypatch.setenv(variable_of(name), text)
    assert run(capsys, "model") == (0, "")
    default = Settings("model", addr="127.0.0.1:0")
    assert [settings for settings, _ in served] == [dataclasses.replace(default, **{name: value})] * 2


def test_a_flag_beats_its_variable(capsys, monkeypatch, served):
    monkeypatch.setenv("EMBED_MAX_TEXTS", "7")
    monkeypatch.setenv("EMBED_MODEL", "elsewhere")
    assert run(capsys, "--max-texts", "8", "model") == (0, "")
    assert (served[0][0].max_texts, served[0][0].model) == (8, "model")


def test_a_variable_names_the_model_where_no_argument_does(capsys, monkeypatch, served):
    monkeypatch.setenv("EMBED_MODEL", "model")
    assert run(capsys) == (0, "")
    assert served[0][0].model == "model"


def test_a_variable_can_switch_off(capsys, monkeypatch, served):
    monkeypatch.setenv("EMBED_ACCESS_LOG", "0")
    assert run(capsys, "model") == (0, "")
    assert served[0][0].access_log is False


def test_the_exit_code_is_the_services(capsys, monkeypatch):
    monkeypatch.setattr(service, "serve", lambda settings, listener: listener.socket.close() or 1)
    assert run(capsys, "model") == (1, "")


def test_help_tells_of_ps_variables_signals_and_exit_codes(capsys):
    assert main(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(flag[0] in text for _, flag, *_ in FLAGS)
    assert "ps shows it: EMBED_TOKEN and --token-file keep it secret" in text
    assert "--max-texts is EMBED_MAX_TEXTS" in text
    assert all(name in text for name in ("SIGTERM", "SIGINT", "SIGHUP"))
    assert "4 the address cannot be listened on" in text


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ([], {}, "no model given; name a model folder, or demo"),
        ([""], {"EMBED_MODEL": "model"}, "no model given"),
        (["model", "demo"], {}, "embed serve takes one model, not 2: model demo"),
        (["model", "--frobnicate"], {}, "unknown option --frobnicate"),
        (["model", "--addr", "8000"], {}, "the address '8000' is not HOST:PORT"),
        (["model", "--pool", "median"], {}, "--pool: invalid choice"),
        (["model"], {"EMBED_POOL": "median"}, "pool 'median' is not one of cls, mean"),
        (["model", "--device", "tpu"], {}, "--device: invalid choice"),
        (["model"], {"EMBED_DEVICE": "tpu"}, "device 'tpu' is not one of auto, cpu, cuda"),
        (["model", "--log-level", "loud"], {}, "--log-level: invalid choice"),
        (["model"], {"EMBED_LOG_LEVEL": "loud"}, "log-level 'loud' is not one of debug, info"),
        (["model", "--maxseq", "many"], {}, "--maxseq: invalid int value: 'many'"),
        (["model"], {"EMBED_MAXSEQ": "many"}, "EMBED_MAXSEQ is 'many'; a whole number is expected"),
        (["model"], {"EMBED_ACCESS_LOG": "maybe"}, "EMBED_ACCESS_LOG is 'maybe'; 1 or 0 is expected"),
        (["model", "--threads", "0"], {}, "threads 0: this machine takes 1 to "),
        (["model", "--max-texts", "0"], {}, "max-texts 0: 1 to 1,000,000 can be taken"),
        (["model", "--graceful", "-1"], {}, "graceful -1: 0 to 86400 seconds can be waited"),
        (["model", "--token", ""], {}, "the token (--token, EMBED_TOKEN) is empty"),
        (["model"], {"EMBED_TOKEN": ""}, "the token (--token, EMBED_TOKEN) is empty"),
        (["model", "--token", "sécret"], {}, "a character that a header can't carry"),
        (["model", "--token", "a b"], {}, "a character that a header can't carry"),
        (["model", "--token", "a", "--token-file", "TOKEN"], {}, "give a token or a token file, not both"),
        (["model", "--token-file", "missing"], {}, "the token file missing can't be read (No such file or directory)"),
        (["model"], {"EMBED_LIMIT_IDLE_S": "soon"}, "EMBED_LIMIT_IDLE_S is 'soon'; a number above 0 is expected"),
    ],
)
def test_a_refused_option_is_one_sentence_and_exit_code_2(capsys, monkeypatch, served, arguments, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, err = run(capsys, *arguments)
    assert (code, err.count("\n"), served) == (2, 1, [])
    assert err.startswith("embed: error: ")
    assert said in err
    assert "sécret" not in err


def test_an_address_in_use_is_exit_code_4(capsys, served, busy):
    code, err = run(capsys, "model", "--addr", busy)
    assert (code, err.count("\n"), served) == (4, 1, [])
    assert err.startswith(f"embed: error: can't listen on {busy}: the address is in use")


def test_what_is_not_a_model_is_exit_code_3_and_leaves_no_socket(capsys, served, tmp_path):
    code, err = run(capsys, "nowhere", "--addr", f"unix:{tmp_path}/embed.sock")
    assert (code, served) == (3, [])
    assert err == f"embed: error: there is no model folder 'nowhere'; pass {models.EXPECTED}\n"
    assert not (tmp_path / "embed.sock").exists()


def test_options_are_checked_before_the_address_and_that_before_the_model(capsys, busy):
    assert run(capsys, "nowhere", "--addr", busy, "--token", "")[0] == 2
    assert run(capsys, "nowhere", "--addr", busy)[0] == 4
    assert run(capsys, "nowhere")[0] == 3


BUSY = """
import sys
from embed.cli import main
code = main(["serve", "model", "--addr", sys.argv[1]])  # nothing is left of stdout after an error
print(code, *sorted({"gunicorn", "gevent", "numpy", "falcon", "ssl"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_busy_port_is_told_before_anything_heavy_is_imported(busy):
    done = subprocess.run([sys.executable, "-c", BUSY, busy], capture_output=True, text=True, timeout=30)
    assert done.stderr.splitlines()[1:] == ["4"]


# --- what is warned of


def test_an_open_address_without_a_token_is_warned_of(capsys, served):
    code, err = run(capsys, "model", "--addr", ":0")
    assert (code, err.count("\n")) == (0, 1)
    port = served[0][1].name[1]
    assert err.startswith(
        f"embed: warning: http://0.0.0.0:{port} is open to everybody who can reach it; ask for a token"
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--addr", "127.0.0.1:0"],
        ["--addr", "localhost:0"],
        ["--addr", "unix:embed.sock"],
        ["--addr", ":0", "--token", "s3cret"],
        ["--addr", ":0", "--token-file", "TOKEN"],
    ],
)
def test_loopback_a_unix_socket_and_a_token_need_no_warning(capsys, served, options):
    assert run(capsys, "model", *options) == (0, "")
