"""Where the service listens: spellings of an address, what can't be bound and why, Unix sockets and their files."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import textwrap

import pytest

from embed.errors import AddressError, OptionError
from embed.server import address
from embed.server.address import Listener, bind, parse


@contextlib.contextmanager
def listening(text):
    listener = bind(parse(text))
    try:
        yield listener
    finally:
        listener.close()


@pytest.fixture
def has_ipv6():
    """Whether this machine lets a socket listen on IPv6's loopback; where it doesn't, that is what must be said."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


# --- spellings


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000),
        ("localhost:80", "localhost", 80),
        ("my-host.example:65535", "my-host.example", 65535),
        (":8000", "0.0.0.0", 8000),
        ("[::1]:8000", "::1", 8000),
        ("[::]:0", "::", 0),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ],
)
def test_a_host_and_a_port_are_read(text, host, port):
    parsed = parse(text)
    assert (parsed.host, parsed.port, parsed.path) == (host, port, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8000",
        ":",
        "localhost",
        "localhost:",
        "localhost:http",
        "localhost:65536",
        "localhost:-1",
        "localhost:8000 ",
        "localhost:\N{ARABIC-INDIC DIGIT EIGHT}",
        "::1:8000",
        "[::1]",
        "[]:8000",
        "[::1:8000",
        "http://localhost:8000",
        "localhost:8000/",
        "me@localhost:8000",
    ],
)
def test_what_is_not_an_address_gets_the_spellings_that_are(text):
    with pytest.raises(OptionError, match=r"is not HOST:PORT, \[IPV6\]:PORT or unix:PATH, e.g. 127.0.0.1:8000"):
        parse(text)


def test_a_path_is_read_as_it_stands():
    assert parse("unix:/run/a b/embed.sock").path == "/run/a b/embed.sock"
    assert parse("unix:embed.sock").path == "embed.sock"


@pytest.mark.parametrize(
    ("text", "said"),
    [("unix:", "has no path"), ("unix:/" + "x" * 107, "at most 107"), ("unix:/" + "ö" * 54, "107 bytes")],
)
def test_a_path_that_no_socket_can_have_is_refused(text, said):
    with pytest.raises(OptionError, match=said):
        parse(text)


def test_the_longest_path_fits(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    name = "s" * (107 - len(os.fsencode(folder)) - 1)
    with listening(f"unix:{folder}/{name}"):
        assert (folder / name).is_socket()


# --- what is printed


def test_port_0_gives_the_real_one():
    with listening("127.0.0.1:0") as listener:
        port = listener.socket.getsockname()[1]
        assert port != 0
        assert listener.url == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_ipv6_is_printed_in_brackets(has_ipv6):
    if has_ipv6:
        with listening("[::1]:0") as listener:
            assert listener.url == f"http://[::1]:{listener.socket.getsockname()[1]}"
            assert listener.is_local
    else:
        with pytest.raises(AddressError, match=r"^can't listen on \[::1\]:0: this machine has no "):
            bind(parse("[::1]:0"))


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("127.1.2.3", True), ("localhost", True), ("", False)]
)
def test_loopback_is_told_from_the_rest(host, local):
    with listening(f"{host}:0") as listener:
        assert listener.is_local == local


class NamedSocket:
    def __init__(self, name):
        self.getsockname = lambda: name


@pytest.mark.parametrize(
    ("name", "local", "url"),
    [
        (("::1", 8000, 0, 0), True, "http://[::1]:8000"),
        (("::", 8000, 0, 0), False, "http://[::]:8000"),
        (("::ffff:127.0.0.1", 8000, 0, 0), True, "http://[::ffff:127.0.0.1]:8000"),
        (("fe80::1%eth0", 8000, 0, 2), False, "http://[fe80::1%eth0]:8000"),
        (("192.0.2.1", 80), False, "http://192.0.2.1:80"),
        ("/run/embed.sock", True, "unix:/run/embed.sock"),
    ],
)
def test_a_socket_from_elsewhere_is_described_by_its_name(name, local, url):
    listener = Listener(NamedSocket(name))
    assert (listener.is_local, listener.url) == (local, url)


# --- what can't be bound


def test_an_address_in_use_is_named():
    with listening("127.0.0.1:0") as first:
        port = first.socket.getsockname()[1]
        with pytest.raises(AddressError, match=f"^can't listen on 127.0.0.1:{port}: the address is in use; stop"):
            bind(parse(f"127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere.invalid:80", r"nowhere\.invalid:80: \w+"),  # the resolver's words
        ("a..b:80", r"a\.\.b:80: that is not a host name"),
        (f"{'x' * 64}:80", "that is not a host name"),
        ("192.0.2.1:80", r"192\.0\.2\.1:80: this machine has no such address"),  # TEST-NET-1: nobody's
    ],
)
def test_a_host_that_is_not_this_machine_is_named(text, said):
    with pytest.raises(AddressError, match=f"^can't listen on .*{said}"):
        bind(parse(text))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(AddressError, match=r"missing/embed\.sock: the folder doesn't exist"):
        bind(parse(f"unix:{tmp_path}/missing/embed.sock"))


# --- unix sockets


def test_only_its_owner_may_connect(tmp_path):
    path = tmp_path / "embed.sock"
    with listening(f"unix:{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_removed_at_the_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with listening("unix:embed.sock"):
        monkeypatch.chdir("/")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_already_gone_is_no_error(tmp_path):
    with listening(f"unix:{tmp_path}/embed.sock"):
        (tmp_path / "embed.sock").unlink()


def test_a_file_that_a_later_server_has_made_is_left_alone(tmp_path):
    path = tmp_path / "embed.sock"
    with listening(f"unix:{path}"):
        path.unlink()
        later = bind(parse(f"unix:{path}"))
    assert path.is_socket()
    later.close()


def test_the_socket_of_a_server_that_is_gone_is_replaced(tmp_path):
    path = tmp_path / "embed.sock"
    bind(parse(f"unix:{path}")).socket.close()
    assert path.is_socket()
    with listening(f"unix:{path}") as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert listener.url == f"unix:{path}"


def test_the_socket_of_a_live_server_is_left_alone(tmp_path):
    path = tmp_path / "embed.sock"
    with listening(f"unix:{path}"):
        with pytest.raises(AddressError, match="the address is in use"):
            bind(parse(f"unix:{path}"))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_live_server_whose_queue_is_full_is_still_alive(tmp_path):
    """connect() would wait for it."""
    path = tmp_path / "embed.sock"
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as clients:
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        with pytest.raises(AddressError, match="the address is in use"):
            bind(parse(f"unix:{path}"))


@pytest.mark.parametrize("make", ["file", "folder"])
def test_what_is_not_a_socket_is_never_removed(tmp_path, make):
    path = tmp_path / "data"
    if make == "file":
        path.write_text("precious")
    else:
        path.mkdir()
    with pytest.raises(AddressError, match="there is a file of that name, which is not a socket"):
        bind(parse(f"unix:{path}"))
    assert path.exists()


# --- systemd


PASSED = """
    import os, socket, sys
    from embed.server import address
    listening = socket.create_server(("127.0.0.1", 0))
    os.dup2(listening.fileno(), 3)
    os.environ.update(LISTEN_PID=str({pid}), LISTEN_FDS="{count}", LISTEN_FDNAMES="embed.socket")
    passed = address.inherited()
    assert not any(name.startswith("LISTEN_") for name in os.environ)
    print(passed and passed.url == f"http://127.0.0.1:{{listening.getsockname()[1]}}")
"""


def passed(pid, count):
    program = textwrap.dedent(PASSED.format(pid=pid, count=count))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_socket_that_systemd_passes_is_taken():
    assert passed("os.getpid()", 1) == "True"


def test_one_that_was_passed_to_another_process_is_not():
    assert passed("os.getpid() + 1", 1) == "None"


def test_of_two_passed_sockets_none_is_guessed():
    assert "systemd passed 2 sockets; one is expected" in passed("os.getpid()", 2)


def test_without_systemd_nothing_is_taken(monkeypatch):
    monkeypatch.delenv("LISTEN_PID", raising=False)
    assert address.inherited() is None
