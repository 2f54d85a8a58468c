"""From a body or a query to texts: what is taken, and what is refused with which status and sentence."""

import json
import zlib

import falcon
import falcon.testing
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stub_embedder import StubEmbedder
from stub_service import serving

from embed.server import payload as payload_module
from embed.server.limits import Limits
from embed.server.payload import check_headers, from_body, from_query

LIMITS = {"max_texts": 4, "max_commas": 20}


def read(document):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return from_body(body, **LIMITS)


def refusal(call, *arguments):
    """Return the status and the sentence with which a call is refused."""
    with pytest.raises(falcon.HTTPError) as caught:
        call(*arguments)
    return caught.value.status_code, caught.value.description


@pytest.mark.parametrize(
    ("document", "texts"),
    [
        ({"text": "a"}, ["a"]),
        ({"text": ""}, [""]),
        ({"text": ["a", "", "b"]}, ["a", "", "b"]),
        ({"texts": ["a"]}, ["a"]),
        ({"texts": "a"}, ["a"]),
        ({"text": "a", "texts": None}, ["a"]),
        ({"text": None, "texts": ["a"]}, ["a"]),
        ({"text": "a", "user": "u1", "foo": 1, "dimensions": None, "model": "gpt-4o"}, ["a"]),
        ({"text": "a,b" * 6, "extra": {"deep": [[]]}}, ["a,b" * 6]),
        (b'{"text": "first", "text": "last"}', ["last"]),
        ('{"text": "é 東京 😀"}'.encode(), ["é 東京 😀"]),
        (b'{"text": "\\u00e9\\ud83d\\ude00\\u0000\\n"}', ["é😀\0\n"]),
        (b'\xef\xbb\xbf{"text": "a"}', ["a"]),
        (b' \r\n\t{"text" :\n"a"} \n', ["a"]),
    ],
    ids=repr,
)
def test_a_body_of_texts_is_read(document, texts):
    assert read(document).texts == texts


@pytest.mark.parametrize(("value", "read_as"), [(True, True), (False, False), (None, None)])
def test_normalize_is_read(value, read_as):
    assert read({"text": "a", "normalize": value}).normalize is read_as
    assert read({"text": "a"}).normalize is None


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "no text given"),
        ({"text": None}, "no text given"),
        ({"text": []}, "no text given"),
        ({"texts": []}, "no text given"),
        ({"text": None, "texts": None}, "no text given"),
        ({"input": "x"}, "no text given"),
        ({"inputs": ["x"]}, "no text given"),
        ({"Text": "x"}, "no text given"),
        ({"text": "a", "texts": ["b"]}, "both given"),
        ({"text": [], "texts": []}, "both given"),
        ({"text": 5}, "text is a number"),
        ({"text": 1.5}, "text is a number"),
        ({"text": True}, "text is a boolean"),
        ({"text": {}}, "text is an object"),
        ({"text": {"0": "a"}}, "text is an object"),
        ({"texts": 0}, "is a number"),
        ({"text": [None]}, "text 0 is null"),
        ({"text": [["a"]]}, "text 0 is a list"),
        ({"text": ["ok", 17, "ok"]}, "text 1 is a number"),
        ({"text": ["ok", "ok", {}]}, "text 2 is an object"),
        ({"text": "a", "normalize": "false"}, "normalize is a string"),
        ({"text": "a", "normalize": 0}, "normalize is a number"),
        ({"text": "a", "normalize": []}, "normalize is a list"),
        ([], "the body is a list"),
        (["a"], "the body is a list"),
        ("x", "the body is a string"),
        (None, "the body is null"),
        (5, "the body is a number"),
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"\xef\xbb\xbf", "the body is empty"),
        (b"{", "not JSON"),
        (b'{"text": "a"', "not JSON"),
        (b'{"text": "a"} {"text": "b"}', "not JSON"),
        (b"{'text': 'a'}", "not JSON"),
        (b'{"text": "a",}', "not JSON"),
        (b'{"text": NaN}', "not JSON"),
        (b"text=a&normalize=true", "not JSON"),
        (b'{"text": "\xff"}', "not JSON"),
        (b'{"text": "\xed\xa0\x80"}', "not JSON"),
        (b'{"text": "\\ud800"}', "not JSON"),
        (b'{"text": "\\udc00 a"}', "not JSON"),
        (b'{"text": "a\nb"}', "not JSON"),
        ('{"text": "a"}'.encode("utf-16"), "not JSON"),
        (zlib.compress(b'{"text": "a"}'), "not JSON"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_body_that_asks_for_nothing_is_a_400_that_says_why(document, sentence):
    status, said = refusal(read, document)
    assert status == 400
    assert sentence in said
    assert len(said) < 250


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"text":['], ids=bytes.decode)
def test_a_deep_body_is_a_400(opening):
    status, said = refusal(lambda: from_body(opening * 100_000, max_texts=1, max_commas=1_000_000))
    assert status == 400
    assert "not JSON" in said


def test_at_most_so_many_texts_are_taken():
    assert len(read({"text": ["a"] * 4}).texts) == 4
    status, said = refusal(read, {"text": ["a"] * 5})
    assert (status, said) == (413, "5 texts in one request, and at most 4 are taken; send several")


@pytest.mark.parametrize(
    ("mark", "most", "name"), [(",", 20, "commas"), (":", 10, "colons"), ("[", 4, "brackets"), ("{", 4, "braces")]
)
def test_at_most_so_many_parts_are_parsed(mark, most, name):
    """Whatever they part. The mark counts in a text too, for what is outside one is known only after parsing."""
    extra = {":": 1, "{": 1}.get(mark, 0)  # those of the object around
    text = mark * (most - extra)
    assert read({"text": text}).texts == [text]
    status, said = refusal(read, {"text": text + mark})
    assert status == 413
    assert f"more than {most} " in said
    assert name in said


@pytest.mark.parametrize(
    "part", [b'"a"', b"[]", b"{}", b'{"a":{"b":{}}}', b"[" * 10 + b"]" * 10, b'{"k":0}'], ids=bytes.decode
)
def test_a_body_of_millions_of_values_is_refused_before_it_is_parsed(part, monkeypatch):
    body = b'{"text":[' + b",".join([part] * ((8 << 20) // (len(part) + 1))) + b"]}"
    monkeypatch.setattr(payload_module, "orjson", None)
    assert refusal(lambda: from_body(body, max_texts=4096, max_commas=Limits().commas))[0] == 413


@pytest.mark.parametrize(
    ("query", "text", "normalize"),
    [
        ("text=a", "a", None),
        ("text=", "", None),
        ("text", "", None),
        ("text=a%2Bb+c", "a+b c", None),
        ("text=%C3%A9%20%E6%9D%B1", "é 東", None),
        ("text=a=b", "a=b", None),
        ("text=100%", "100%", None),
        ("text=%zz", "%zz", None),
        ("text=%00", "\0", None),
        ("text=a;b", "a;b", None),
        ("text=a%26text=b", "a&text=b", None),
        ("other=1&text=a&token=x", "a", None),
        ("Text=b&text=a", "a", None),
        ("text=a&", "a", None),
        ("text=a&normalize=false", "a", False),
        ("normalize=False&text=a", "a", False),
        ("text=a&normalize=true", "a", True),
        ("text=a&normalize=0", "a", True),
        ("text=a&normalize=no", "a", True),
        ("text=a&normalize=", "a", True),
        ("text=a&normalize=true&normalize=false", "a", False),
        ("text=" + "a" * 60_000, "a" * 60_000, None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_query_is_read(query, text, normalize):
    payload = from_query(query)
    assert (payload.texts, payload.normalize) == ([text], normalize)


@pytest.mark.parametrize("text", ["é", "東京"])
def test_raw_utf8_in_a_query_is_read_too(text):
    """As WSGI hands it on: its bytes as latin-1."""
    assert from_query("text=" + text.encode().decode("latin-1")).texts == [text]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("", "no text given"),
        ("normalize=true", "no text given"),
        ("Text=a", "no text given"),
        ("texts=a", "no text given"),
        ("text=a&text=b", "several texts given"),
        ("text=%ff", "not UTF-8"),
        ("text=%C3", "not UTF-8"),
        ("text=%ED%A0%80", "not UTF-8"),
        ("text=\xff", "not UTF-8"),
    ],
)
def test_a_query_that_names_no_text_is_a_400_that_says_why(query, sentence):
    status, said = refusal(from_query, query)
    assert status == 400
    assert sentence in said


def request(**headers):
    return falcon.Request(falcon.testing.create_environ(method="POST", headers=headers))


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "application/json; charset=utf-8",
        'application/json; Charset="UTF-8"',
        "application/json;charset=utf8 ; q=1",
        "application/json; charset=us-ascii",
        "application/json; charset=",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=latin-1",
        "nonsense",
        ";;;=",
        "a" * 60_000,
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_missing_or_odd_content_type_is_let_through(content_type):
    check_headers(request(**({} if content_type is None else {"Content-Type": content_type})))


@pytest.mark.parametrize("charset", ["latin-1", "ISO-8859-1", "utf-16", '"utf-16le"', "utf-7", "x" * 60_000])
def test_another_charset_is_a_415(charset):
    status, said = refusal(check_headers, request(**{"Content-Type": f"application/json; charset={charset}"}))
    assert status == 415
    assert "send UTF-8" in said
    assert len(said) < 200


@pytest.mark.parametrize("coding", ["identity", "IDENTITY", " identity ", ""])
def test_a_body_that_is_not_compressed_is_let_through(coding):
    check_headers(request(**{"Content-Encoding": coding}))


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, identity", "x" * 60_000])
def test_a_compressed_body_is_a_415(coding):
    status, said = refusal(check_headers, request(**{"Content-Encoding": coding}))
    assert status == 415
    assert "send plain JSON" in said
    assert len(said) < 200


def test_refusals_reach_the_client_as_json():
    """Each way in once; the inputs above stop at this module."""
    embedder = StubEmbedder()
    with serving(embedder, limits=Limits(commas=5), max_texts=3) as service:
        ask = service.client.simulate_post
        answers = {
            400: ask("/create_embedding", body=b'{"text": 5}'),
            413: ask("/create_embedding", body=b'{"text": ["a", "b", "c", "d"]}'),
            415: ask("/create_embedding", body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}),
        }
        for status, answer in answers.items():
            assert answer.status_code == status
            assert answer.headers["Content-Type"] == "application/json"
            assert list(answer.json) == ["error"]
        assert ask("/create_embedding", body=b'{"text": "a,,,,,,"}').status_code == 413
        assert service.get("/create_embedding").status_code == 400
    assert embedder.chunks == [], "none was computed"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["text", "texts", "normalize", "x"]), JSON_VALUES, max_size=4)


def outcome(call, *arguments):
    """Return the payload, or the status of the refusal."""
    try:
        return call(*arguments)
    except falcon.HTTPError as ex:
        return ex.status_code


@given(st.one_of(JSON_VALUES, DOCUMENTS))
@example({"text": 10**400})
def test_any_json_is_read_or_refused(document):
    result = outcome(read, document)
    assert result in (400, 413) or (result.texts and all(isinstance(text, str) for text in result.texts))


@given(st.binary(max_size=40))
@example(b'{"text":"\xf0\x9f\x98\x80"}')
def test_any_bytes_are_read_or_refused(body):
    result = outcome(read, body)
    assert result in (400, 413) or result.texts


@given(st.text(st.characters(max_codepoint=255), max_size=40))
@example("text=%25&normalize=%25")
def test_any_query_is_read_or_refused(query):
    result = outcome(from_query, query)
    assert result == 400 or result.texts[0].encode() is not None
