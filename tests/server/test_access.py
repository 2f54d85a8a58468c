"""The access log: a line a request, whatever the format; no query, no token, no line that a client made up."""

from __future__ import annotations

import re

import pytest
from live_worker import running_worker
from raw_http import get
from serve_process import wait_until

EVERYTHING = (
    '%(h)s "%(r)s" %(m)s %(U)s ?%(q)s %(H)s %(s)s %(B)s "%(f)s" "%(a)s" %(u)s'
    " %({authorization}i)s %({cookie}i)s %({referer}i)s %({x}i)s"
    " %({query_string}e)s %({raw_uri}e)s %({path_info}e)s %({http_authorization}e)s %({http_referer}e)s"
)
SECRETS = (
    "Authorization: Bearer s3cret",
    "Proxy-Authorization: Bearer s3cret",
    "Cookie: token=s3cret",
    "Referer: http://test/create_embedding?token=s3cret",
)


@pytest.fixture
def log(tmp_path):
    """Run a worker on such a format at the loudest level; yield it and a function that waits for its lines."""
    path = tmp_path / "access.log"

    def lines(count):
        wait_until(lambda: path.read_text().count("\n") >= count, f"{count} lines")
        return path.read_text().splitlines()

    options = ("--access-logfile", str(path), "--access-logformat", EVERYTHING, "--log-level=debug")
    with running_worker(*options) as worker:
        yield worker, lines


def test_no_line_holds_a_query_or_a_token(log):
    worker, lines = log
    for path in ("/health", "/nowhere", "/error", "/%zz"):
        worker.ask(get(f"{path}?token=s3cret&text=private", *SECRETS))
    worker.ask(get("http://test/health?token=s3cret", *SECRETS))
    for bad in (get("/?token=s3cret#"), get("/?token=s3cret", version="9.9"), get("/?token=s3cret", "X: s3cret\0")):
        worker.ask(bad)
    for line in lines(8):
        assert not re.search("s3cret|private", line)
        assert line.startswith("127.0.0.1 ")
    assert not re.search("s3cret|private", worker.log())
    statuses = [re.search(r" \? HTTP/1.1 (\d+) | \? - (\d+) ", line) for line in lines(8)]
    assert [found and (found[1] or found[2]) for found in statuses] == [
        "200",
        "404",
        "500",
        "404",
        "200",
        "400",
        "505",
        "400",
    ]


def test_a_client_can_make_up_no_line(log):
    worker, lines = log
    worker.ask(get("/a%0A127.0.0.1%20GET%20/b%0D%1B[2J%00%C2%85", "X: caf\xe9 \x9b2J\x85 \xa0"))
    worker.ask(get('/"quoted"%22', 'User-Agent: "a" \'b\' \\" %(h)s'))
    first, second = lines(2)
    assert "/a%0A127.0.0.1%20GET%20/b%0D%1B[2J%00%C2%85 ?" in first
    assert all(" " <= char <= "~" for char in first + second)
    assert '\\"quoted\\"%22' in second


def test_an_answer_that_is_cut_has_its_line(log):
    worker, lines = log
    with worker.client(receive_bytes=4096) as client:
        client.send(get("/large?size=9000000"))
        client.head()
        client.reset()
    (line,) = lines(1)
    assert re.search(r" /large \? HTTP/1.1 200 ", line)


def test_the_length_is_the_bodys_of_answers_and_refusals_alike(log):
    worker, lines = log
    replies = [worker.ask(request) for request in (get("/health"), get("/health", version="9.9"))]
    with worker.client() as client:
        client.send(get("/error", method="HEAD"))
        replies.append(client.answer(to_head=True))
    assert [reply.status for reply in replies] == [200, 505, 500]
    lengths = [re.search(r" (?:HTTP/1.1|-) (?:200|505|500) (\d+) ", line)[1] for line in lines(3)]
    assert lengths == [str(len(reply.body)) for reply in replies]


def test_the_log_can_be_moved_away(tmp_path):
    path, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    with running_worker("--access-logfile", str(path)) as worker:
        worker.ask(get("/health"))
        wait_until(lambda: path.read_text(), "a line")
        path.rename(moved)
        worker.send(10)  # SIGUSR1
        wait_until(path.exists, "a new file")
        worker.ask(get("/counted"))
        wait_until(lambda: "/counted" in path.read_text(), "a line in it")
        assert "/counted" not in moved.read_text()
