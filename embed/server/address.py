"""Where the service listens: what `--addr` says, and the socket for it, bound before anything heavy is imported.

HOST:PORT, [IPV6]:PORT, :PORT (every IPv4 interface) or unix:PATH; port 0 is any that is free.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass

from embed.errors import AddressError, OptionError

BACKLOG = 2048  # connections that wait for an accept while a worker loads; the kernel caps it at net.core.somaxconn
MAX_UNIX_BYTES = 107  # sun_path of unix(7) less its NUL
FIRST_PASSED_FD = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)

_REASONS = {
    errno.EACCES: "permission denied; another folder, or a port from 1024 on, may be allowed",
    errno.EADDRINUSE: "the address is in use; stop what listens there, or choose another with --addr",
    errno.EADDRNOTAVAIL: "this machine has no such address; its own are listed by ip addr",
    errno.EAFNOSUPPORT: "this machine has no addresses of that kind",
    errno.ENOENT: "the folder doesn't exist; make it first",
}


@dataclass(frozen=True)
class Address:
    """What `--addr` says: a host and a port, or the path of a Unix socket."""

    text: str
    host: str = ""
    port: int = 0
    path: str | None = None


class Listener:
    """A socket that listens, and the file it left in the file system if it is a Unix socket of our own."""

    def __init__(self, sock: socket.socket, path: str | None = None) -> None:
        self.socket = sock
        self.name = sock.getsockname()
        self._file = None if path is None else (os.path.abspath(path), _identity(path))

    @property
    def url(self) -> str:
        """The address to print; the port is the real one, where 0 was asked for."""
        if isinstance(self.name, str | bytes):
            return f"unix:{os.fsdecode(self.name)}"
        host, port = self.name[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_local(self) -> bool:
        """Tell whether only this machine can connect."""
        if isinstance(self.name, str | bytes):
            return True
        ip = ipaddress.ip_address(self.name[0].partition("%")[0])
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback

    def close(self) -> None:
        """Listen no more, and delete the socket's file, unless somebody else has put another in its place."""
        self.socket.close()
        if self._file is not None and _identity(self._file[0]) == self._file[1]:
            os.unlink(self._file[0])


def parse(text: str) -> Address:
    """Return the address that `text` spells. Raises `OptionError` with the spelling that is expected."""
    if text.startswith("unix:"):
        return Address(text, path=_checked_path(text))
    match = re.fullmatch(r"(?:\[(?P<v6>[^][]+)\]|(?P<host>[^][:/@\s]*)):(?P<port>[0-9]{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise OptionError(
            f"the address {text!r} is not HOST:PORT, [IPV6]:PORT or unix:PATH, e.g. 127.0.0.1:8000 or [::1]:8000"
        )
    return Address(text, match["v6"] or match["host"] or "0.0.0.0", int(match["port"]))


def bind(address: Address) -> Listener:
    """Return a socket that listens there. Raises `AddressError` that names the address and says why it can't be."""
    try:
        return _bind_tcp(address) if address.path is None else _bind_unix(address.path)
    except UnicodeError as ex:  # a label that IDNA refuses
        raise AddressError(f"can't listen on {address.text}: that is not a host name") from ex
    except OSError as ex:
        reason = None if isinstance(ex, socket.gaierror) else _REASONS.get(ex.errno or 0)
        reason = reason or ex.strerror or str(ex)
        raise AddressError(f"can't listen on {address.text}: {reason}") from ex


def inherited() -> Listener | None:
    """Return the socket that systemd listens on for us (sd_listen_fds(3)), or None if it passed none."""
    passed = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if passed["LISTEN_PID"] != str(os.getpid()):
        return None
    if passed["LISTEN_FDS"] != "1":
        raise OptionError(f"systemd passed {passed['LISTEN_FDS']} sockets; one is expected, with one ListenStream=")
    return Listener(socket.socket(fileno=FIRST_PASSED_FD))


def _checked_path(text: str) -> str:
    path = text.removeprefix("unix:")
    if not path:
        raise OptionError("the address unix: has no path; e.g. unix:/run/embed/embed.sock")
    if "\0" in path or len(os.fsencode(path)) > MAX_UNIX_BYTES:
        raise OptionError(f"the path in {text!r} is too long for a Unix socket; at most {MAX_UNIX_BYTES} bytes fit")
    return path


def _bind_tcp(address: Address) -> Listener:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name that has both, as localhost, is bound on IPv4: what every client tries.
    family, *_, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # [::] is for both kinds, whatever the machine's default says
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, where[0] != "::")
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return Listener(sock)


def _bind_unix(path: str) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(path)
        except OSError as ex:
            if ex.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            os.unlink(path)
            sock.bind(path)
        os.chmod(path, 0o600)  # before anybody can connect: that takes listen()
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return Listener(sock, path)


def _is_stale(path: str) -> bool:
    """Tell whether `path` is the socket of a server that is gone; raise `OSError` if it isn't a socket at all."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file of that name, which is not a socket; remove it first")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # of a live server whose queue is full, connect() would wait
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
