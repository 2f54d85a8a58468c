"""The application that the worker's tests run: what the worker calls of the real one, and routes that show what came.

`GET /health` answers at once, `GET /count` tells how often `/counted` ran, `POST /echo` returns the body.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import gevent

from embed.errors import EmbedError


class Service:
    def __init__(self) -> None:
        self.counts = {}
        self.draining = gevent.event.Event()

    def refused(self, status):
        self.counts[str(status)] = self.counts.get(str(status), 0) + 1

    def drain(self):
        self.draining.set()

    def abandon(self):
        pass

    def close(self):
        pass

    def on_ready(self, callback):
        callback("(stub)")

    def on_failure(self, callback):
        pass

    def __call__(self, environ, start_response):
        route = environ["PATH_INFO"].strip("/") or "health"
        return getattr(self, route)(environ, start_response)

    def health(self, environ, start_response):
        start_response("200 OK", [("Content-Length", "2"), ("Content-Type", "text/plain")])
        return [b"ok"]

    def echo(self, environ, start_response):
        body = environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


def create():
    return Service()
