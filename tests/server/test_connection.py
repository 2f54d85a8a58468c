"""A connection and the lobby it waits in, at moments that no client can bring about for certain."""

from __future__ import annotations

import gc
import socket
import weakref

import gevent
import pytest
from gevent.event import Event
from gunicorn.config import Config
from raw_http import get

from embed.server.body import Body
from embed.server.connection import BODY, HEAD, IDLE, Connection, Dropped, Refused
from embed.server.limits import Limits
from embed.server.lobby import Lobby
from embed.server.request import Request, Rules
from embed.server.waiting import give_way

LIMITS = Limits(idle_s=5.0, linger_s=1.0)


@pytest.fixture
def lobby():
    return Lobby(LIMITS)


@pytest.fixture
def pair(lobby):
    """A connection and its client's socket."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "", lobby)
    yield connection, theirs
    connection.close()
    theirs.close()


def started(function):
    """Start a greenlet and let it run until it waits."""
    greenlet = gevent.spawn(function)
    give_way()
    give_way()
    assert not greenlet.dead
    return greenlet


def test_a_request_that_has_come_unseen_survives_the_drain(lobby, pair):
    connection, client = pair
    connection.served = 1
    waiting = started(connection.head)
    client.send(get("/health"))
    lobby.drain()  # before the loop has looked
    assert waiting.get(timeout=5) == get("/health")


def test_without_one_a_kept_connection_ends_with_the_drain(lobby, pair):
    connection, _ = pair
    connection.served = 1
    waiting = started(connection.head)
    lobby.drain()
    with pytest.raises(Dropped):
        waiting.get(timeout=5)


@pytest.mark.parametrize("stage", [IDLE, HEAD, BODY])
def test_after_a_standstill_nobody_is_late_who_has_sent_something(stage, lobby, pair):
    """Every deadline is past, and what came meanwhile lies unread."""
    connection, client = pair
    waiting = started(lambda: (connection.begin(stage, 5.0), connection.receive(100)))
    connection.until = 0.0
    client.send(b"one")
    lobby.end_overdue()
    assert waiting.get(timeout=5)[1] == b"one"


def test_who_has_sent_nothing_is_late(lobby, pair):
    connection, _ = pair
    waiting = started(lambda: (connection.begin(BODY, 0.0), connection.receive(100)))
    with pytest.raises(Refused, match="the request's body did not arrive in time"):
        waiting.get(timeout=5)


@pytest.mark.parametrize("progresses", [False, True])
def test_who_is_given_up_ends_in_haste_unless_it_has_gone_on_before(progresses, lobby, pair):
    """Later refusals of one that went on linger as others do, or a reset might reach its client before them."""
    connection, client = pair
    waiting = started(lambda: (connection.begin(HEAD, 5.0), connection.receive(100), connection.end_stage()))
    assert lobby.shed()  # not on the loop: it takes effect when that has its turn
    if progresses:
        connection.end_stage()
        client.send(b"one")
        waiting.get(timeout=5)
    else:
        with pytest.raises(Refused, match="out of connections"):
            waiting.get(timeout=5)
    assert connection.hurried is not progresses


def test_the_loop_has_its_turn_before_a_request_that_is_there_already(pair):
    connection, client = pair
    other, its_client = socket.socketpair()
    heard = Event()
    watcher = gevent.get_hub().loop.io(other.fileno(), 1)
    watcher.start(lambda: (other.recv(1), heard.set()))
    with other, its_client:
        its_client.send(b"x")
        client.send(get("/health"))
        assert connection.head() == get("/health")
        give_way()
        assert heard.is_set()
        watcher.close()


def test_a_body_that_failed_leaves_nothing_for_the_garbage_collector(pair):
    """A trace would hold up to 16 MiB, for as long as nothing else makes the collector run."""
    connection, client = pair
    head = get("/echo", "Content-Length: 5", method="POST")
    body = Body(Request(head, Rules(Config(), 1000)), connection)
    client.send(b"hell")
    client.close()
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(Refused, match="1 bytes before its Content-Length"):
                body.read()
        assert connection.lobby.buffered == 0
        body.close()
        gone = weakref.ref(body)
        del body
        assert gone() is None
    finally:
        gc.enable()


def test_a_client_that_left_is_a_connection_error_to_who_sends(pair):
    connection, client = pair
    client.close()
    with pytest.raises(ConnectionResetError):
        connection.send(b"x")
