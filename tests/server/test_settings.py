"""The service's settings: given, else of the environment, else the default; what is refused says where it came from."""

import dataclasses
import os

import pytest

from embed.errors import OptionError
from embed.server.settings import Settings, variable_of

# Each setting: its default, what its variable may say, and what that is read as.
SETTINGS = {
    "model": (None, "models/e5-small", "models/e5-small"),
    "addr": ("127.0.0.1:8000", "[::1]:0", "[::1]:0"),
    "token": (None, "s3cret", "s3cret"),
    "token_file": (None, "/run/token", "/run/token"),
    "model_name": (None, "BAAI/bge-m3", "BAAI/bge-m3"),
    "maxseq": (None, "512", 512),
    "pool": (None, "mean", "mean"),
    "no_normalize": (False, "1", True),
    "device": ("auto", "cpu", "cpu"),
    "threads": (None, " 2 ", 2),
    "max_texts": (4096, "100", 100),
    "log_level": ("warning", "debug", "debug"),
    "access_log": (False, "yes", True),
    "graceful": (30, "5", 5),
}


def read(given=None, /, **environ):
    return Settings.from_environment({"model": "m", **(given or {})}, environ)


def test_every_setting_is_in_this_test():
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_the_default_unless_the_variable_says_else_unless_it_is_given(name):
    default, text, value = SETTINGS[name]
    variable = f"EMBED_{name.upper()}"
    assert variable_of(name) == variable
    if name != "model":
        assert getattr(read(), name) == default
        assert getattr(read(**{variable: text}), name) == value
        assert getattr(read({name: None}, **{variable: text}), name) == value, "None is not given"
    assert getattr(read({name: "given"}, **{variable: text}), name) == "given"


def test_the_model_may_come_from_the_environment():
    assert Settings.from_environment({}, {"EMBED_MODEL": "models/x"}).model == "models/x"


@pytest.mark.parametrize("environ", [{}, {"EMBED_MODEL": ""}, {"EMBED_MODEL": "  "}])
@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": ""}, {"model": " "}])
def test_without_a_model_it_says_how_to_name_one(given, environ):
    with pytest.raises(OptionError, match=r"no model given; .* EMBED_MODEL"):
        Settings.from_environment(given, environ)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("model", "token", "token_file")])
def test_a_blank_variable_counts_as_none(name):
    for blank in ("", "  "):
        assert getattr(read(**{variable_of(name): blank}), name) == SETTINGS[name][0]


@pytest.mark.parametrize("name", ["maxseq", "threads", "max_texts", "graceful"])
@pytest.mark.parametrize("text", ["many", "1.5", "1e3", "0x10", "5 5", "NaN", "-"])
def test_a_number_that_is_none_is_refused_by_its_variable(name, text):
    variable = variable_of(name)
    with pytest.raises(OptionError, match=f"{variable} is '{text}'; a whole number is expected"):
        read(**{variable: text})


@pytest.mark.parametrize("name", ["no_normalize", "access_log"])
def test_yes_and_no_have_several_spellings(name):
    variable = variable_of(name)
    for text in ("1", "true", "YES", " On "):
        assert getattr(read(**{variable: text}), name) is True
    for text in ("0", "false", "NO", "off"):
        assert getattr(read(**{variable: text}), name) is False
    with pytest.raises(OptionError, match=f"{variable} is 'maybe'; 1 or 0 is expected"):
        read(**{variable: "maybe"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pool": "median"}, "pool 'median' is not one of cls, mean"),
        ({"device": "tpu"}, "device 'tpu' is not one of auto, cpu"),
        ({"log_level": "loud"}, "log-level 'loud' is not one of debug"),
        ({"threads": 0}, "threads 0"),
        ({"threads": 10**6}, "threads 1000000"),
        ({"max_texts": 0}, "max-texts 0"),
        ({"max_texts": -5}, "max-texts -5"),
        ({"graceful": -1}, "graceful -1"),
        ({"graceful": 10**6}, "graceful 1000000"),
        ({"token": ""}, "the token .* is empty"),
        ({"token": "a", "token_file": "b"}, "not both"),
    ],
    ids=str,
)
def test_a_value_that_nothing_could_take_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        read(given).check()


def test_values_at_their_bounds_pass():
    for given in ({}, {"max_texts": 1}, {"threads": 1}, {"graceful": 0}, {"graceful": 86_400}, {"pool": "mean"}):
        read(given).check()


def test_the_token_is_in_no_representation():
    assert "s3cret" not in repr(read(EMBED_TOKEN="s3cret"))
    assert read(EMBED_TOKEN="s3cret").secret() == "s3cret"
    assert read().secret() is None


@pytest.mark.parametrize("name", ["token", "token_file"])
def test_a_given_token_takes_the_place_of_both_variables(name):
    for environ in (
        {"EMBED_TOKEN": "other"},
        {"EMBED_TOKEN_FILE": "/other"},
        {"EMBED_TOKEN": "", "EMBED_TOKEN_FILE": ""},
    ):
        settings = read({name: "given"}, **environ)
        assert {"token": settings.token, "token_file": settings.token_file} == {
            "token": None,
            "token_file": None,
            name: "given",
        }
    with pytest.raises(OptionError, match="not both"):
        read(EMBED_TOKEN="a", EMBED_TOKEN_FILE="b").secret()


@pytest.mark.parametrize("text", ["", " "])
def test_a_blank_token_variable_closes_the_service_rather_than_opens_it(text):
    """As `EMBED_TOKEN=$UNSET` makes it."""
    with pytest.raises(OptionError, match="the token"):
        read(EMBED_TOKEN=text).secret()
    with pytest.raises(OptionError, match="the token file"):
        read(EMBED_TOKEN_FILE=text).secret()


@pytest.mark.parametrize("token", ["a b", "s\xe9cret", "東京", "tab\t", "line\nfeed", "nul\0", "\x7f", "\ud800"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(token):
    with pytest.raises(OptionError, match="has a character that a header can't carry") as caught:
        read({"token": token}).secret()
    assert token not in str(caught.value)


@pytest.mark.parametrize("content", [b"s3cret", b"s3cret\n", b"s3cret\r\n", b"\ns3cret\n\n"])
def test_a_token_file_holds_the_token_and_perhaps_line_ends(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    assert read({"token_file": str(file)}).secret() == "s3cret"


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n\n", b"two\nlines\n", b"a b", b"\xff\xfe", "s\xe9cret".encode()])
def test_a_token_file_without_a_token_is_refused_by_its_name(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(OptionError, match=str(file)):
        read({"token_file": str(file)}).secret()


def test_a_token_file_that_cannot_be_read_is_refused_by_its_name(tmp_path):
    for path, reason in [(tmp_path / "none", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(OptionError, match=f"{path} can't be read .*{reason}"):
            read({"token_file": str(path)}).secret()


def test_a_token_file_is_read_each_time(tmp_path):
    """A reload reads it again."""
    file = tmp_path / "token"
    file.write_text("old")
    settings = read({"token_file": str(file)})
    assert settings.secret() == "old"
    file.write_text("new")
    assert settings.secret() == "new"


def test_the_process_s_own_environment_is_the_default(monkeypatch):
    monkeypatch.setitem(os.environ, "EMBED_MAX_TEXTS", "7")
    assert Settings.from_environment({"model": "m"}).max_texts == 7
