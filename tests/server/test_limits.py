"""The service's limits: each has a variable, and a value that is no limit is refused by its name."""

import dataclasses

import pytest

from embed.errors import OptionError
from embed.server.limits import Limits

FIELDS = {field.name: field.default for field in dataclasses.fields(Limits)}
WHOLE = [name for name, default in FIELDS.items() if isinstance(default, int)]


def read(**environ):
    return Limits.from_environment({f"EMBED_LIMIT_{name.upper()}": text for name, text in environ.items()})


def test_the_defaults_are_those_that_are_documented():
    assert dataclasses.asdict(read()) == FIELDS
    assert (FIELDS["body_bytes"], FIELDS["head_bytes"], FIELDS["idle_s"]) == (16_777_216, 65_536, 30)
    assert (FIELDS["queue_requests"], FIELDS["queue_tokens"], FIELDS["request_s"]) == (1024, 2_000_000, 600)


@pytest.mark.parametrize("name", FIELDS)
def test_each_limit_has_a_variable(name):
    limits = read(**{name: " 7 "})
    assert getattr(limits, name) == 7
    assert type(getattr(limits, name)) is type(FIELDS[name])
    others = {other: value for other, value in dataclasses.asdict(limits).items() if other != name}
    assert others == {other: value for other, value in FIELDS.items() if other != name}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "-inf", "many", "1,5", "0x10", "5s", "1e999"])
def test_a_value_that_is_no_limit_is_refused_by_its_variable(name, text):
    with pytest.raises(OptionError, match=f"EMBED_LIMIT_{name.upper()} is '{text}'; a .*number above 0 is expected"):
        read(**{name: text})


@pytest.mark.parametrize("name", FIELDS)
def test_times_may_have_fractions_and_counts_may_not(name):
    if name in WHOLE:
        with pytest.raises(OptionError, match="a whole number above 0"):
            read(**{name: "1.5"})
    else:
        assert getattr(read(**{name: "0.25"}), name) == 0.25


def test_a_blank_variable_counts_as_none():
    assert read(idle_s="", body_bytes="  ") == Limits()


def test_the_process_s_own_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("EMBED_LIMIT_IDLE_S", "5")
    assert Limits.from_environment().idle_s == 5
