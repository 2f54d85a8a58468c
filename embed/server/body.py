"""A request's body as the application reads it: received when it's asked for, whole, without its chunks."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

from gunicorn.http.errors import NoMoreData, ParseException

from embed.server.connection import BODY, BODY_READ_BYTES, Connection, Refused
from embed.server.request import Request
from embed.server.waiting import give_way

CHUNK_READ_BYTES = 8 << 10  # gunicorn's parser copies what follows a chunk size, so that more would cost more a chunk
TURN_S = 0.0005  # of a fast sender, before others get one


class Body:
    """`wsgi.input`. What goes wrong while the body arrives raises `Refused`, or `ConnectionError`."""

    def __init__(self, request: Request, connection: Connection) -> None:
        self._request = request
        self._connection = connection
        self._file: io.BytesIO | None = None
        self._failure: Exception | None = None
        self._held = 0
        self._wire = 0  # bytes of a chunked body with its chunks, as far as it was read
        self._turn = 0.0

    @property
    def unread(self) -> bool:
        """Whether bytes of the body may still be on their way, so that no further request can be told from them."""
        return self._file is None and self._request.length != 0

    def read(self, size: int = -1) -> bytes:
        return self._all().read(size)

    def readline(self, size: int = -1) -> bytes:
        return self._all().readline(size)

    def readlines(self, hint: int = -1) -> list[bytes]:
        return self._all().readlines(hint)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all())

    def close(self) -> None:
        """Give the memory back. The failure goes too, since its trace holds what was received, and this object."""
        self._release()
        self._failure = None
        if self._file is not None:
            self._file = io.BytesIO()

    def _release(self) -> None:
        self._connection.lobby.buffered -= self._held
        self._connection.lobby.released += self._held
        self._held = 0

    def _all(self) -> io.BytesIO:
        if self._failure is not None:
            raise self._failure
        if self._file is None:
            try:
                self._file = self._receive()
            except Exception as ex:
                self._failure = ex
                self._connection.end_stage()
                self._release()
                raise
        return self._file

    def _receive(self) -> io.BytesIO:
        length, connection = self._request.length, self._connection
        if length == 0:
            return io.BytesIO()
        if length is not None and length > connection.limits.body_bytes:
            raise self._too_large()
        if self._request.expects_continue and not connection.buffer:
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.begin(BODY, connection.limits.idle_s)
        self._turn = time.monotonic() + TURN_S
        body = io.BytesIO()
        for piece in self._chunked() if length is None else self._of_length(length):
            body.write(piece)
            self._hold(len(piece))
        connection.end_stage()
        body.getvalue()  # cuts the buffer to size, so that reading all of it is no copy: 12 MB take 4 ms
        body.seek(0)
        return body

    def _of_length(self, missing: int) -> Iterator[bytes]:
        connection = self._connection
        piece, connection.buffer = connection.buffer[:missing], connection.buffer[missing:]
        yield piece
        missing -= len(piece)
        while missing:
            piece = connection.receive(min(missing, BODY_READ_BYTES))
            if not piece:
                raise Refused(400, f"the body ended {missing:,} bytes before its Content-Length")
            yield piece
            missing -= len(piece)

    def _chunked(self) -> Iterator[bytes]:
        try:
            for piece in self._request.chunks(self._receive_chunks):
                if self._held + len(piece) > self._connection.limits.body_bytes:
                    raise self._too_large()
                yield piece
        except NoMoreData:
            raise Refused(400, "the body ended before its last chunk") from None
        except ParseException:
            raise Refused(400, "the body's chunks or trailers are malformed") from None
        self._connection.buffer = self._request.rest()

    def _receive_chunks(self, hint: int | None) -> bytes:
        """Return the next bytes of the wire; chunks may cost 64 KiB there, and a sixteenth of what they carry."""
        connection = self._connection
        if self._wire - self._held > connection.limits.head_bytes + self._held // 16:
            raise Refused(400, "the body's chunks are too small, or their extensions or trailers too large")
        data, connection.buffer = connection.buffer, b""
        data = data or connection.receive(min(max(hint or 0, CHUNK_READ_BYTES), BODY_READ_BYTES))
        self._wire += len(data)
        return data

    def _hold(self, count: int) -> None:
        lobby = self._connection.lobby
        self._held += count
        lobby.buffered += count
        if lobby.buffered > lobby.limits.buffered_bytes:
            lobby.make_room(self._connection)
        if time.monotonic() > self._turn:
            give_way()
            self._turn = time.monotonic() + TURN_S

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is over {self._connection.limits.body_bytes:,} bytes")
