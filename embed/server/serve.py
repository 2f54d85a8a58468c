"""Runs the service: gunicorn embedded, from a socket that listens already to an exit code.

gunicorn reads none of its own configuration here, neither gunicorn.conf.py nor GUNICORN_CMD_ARGS: what can be set are
this project's settings and limits.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

from gunicorn import systemd
from gunicorn.app.base import BaseApplication

from embed.console import say
from embed.errors import OptionError
from embed.server.address import BACKLOG, Listener
from embed.server.limits import Limits
from embed.server.master import Master, Report, Stand
from embed.server.settings import Settings

HEARTBEAT_S = 60  # a worker whose loop stands still for that long is killed; it beats once a second
SHARED_MEMORY = "/dev/shm"  # for the heartbeat's file: never a slow disk, and there in read-only containers
ACCESS_LOG = '%(h)s %(t)s "%(m)s %(U)s" %(s)s %(B)s %(M)s ms'  # %(r)s would hold the query: tokens and texts
# Of the environment, what would change how gunicorn starts.
GUNICORN_VARIABLES = ("GUNICORN_PID", "GUNICORN_FD", "NOTIFY_SOCKET")


def serve(settings: Settings, listener: Listener) -> int:
    """Serve until a signal ends it and return the exit code: 0, or 1 if requests were cut off.

    Raises the `EmbedError` that kept the model from being loaded the first time.
    """
    logging.raiseExceptions = False  # a log that can't be written is no reason to write more
    taken = {name: os.environ.pop(name) for name in GUNICORN_VARIABLES if name in os.environ}
    service = Service(settings, listener, notify_socket=taken.get("NOTIFY_SOCKET"))
    try:
        Master(service, service.report, service.renew, settings.graceful).run()
    except SystemExit as ex:
        return 0 if ex.code == 0 else 1
    raise AssertionError("gunicorn's arbiter returned")


class Service(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """What gunicorn runs: its configuration, made in the master, and the application, made in each worker."""

    def __init__(self, settings: Settings, listener: Listener, notify_socket: str | None = None) -> None:
        self.report = Report()
        self._settings = settings
        self._listener = listener
        self._notify_socket = notify_socket
        self._token = settings.secret()
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._configuration().items():
            self.cfg.set(name, value)

    def renew(self) -> None:
        """Read the token file again; if that fails, keep the token."""
        try:
            self._token = self._settings.secret()
        except OptionError as ex:
            say(f"warning: {ex}; the token stays what it was")

    def load(self) -> Any:
        """Make the application. Runs in the worker, whose loop isn't running yet."""
        from embed.server.app import make_app

        settings = dataclasses.replace(self._settings, token=self._token, token_file=None)
        try:
            return make_app(settings, Limits.from_environment())
        except Exception as ex:  # not swallowed: the master raises it, or the log has it
            if self.report.loaded:
                raise
            self.report.fail(ex)
            raise SystemExit(1) from ex

    def ready(self, info: str) -> None:
        """Tell everybody that a model is loaded; called in the worker."""
        self.report.set_loaded()
        say(f"listening on {self._listener.url} {info}")
        if self._notify_socket is not None:
            os.environ["NOTIFY_SOCKET"] = self._notify_socket
            systemd.sd_notify(f"READY=1\nSTATUS={info}", logging.getLogger("gunicorn.error"))

    def failed(self, error: Exception) -> bool:
        """Tell that a model can't be loaded; called in the worker. Return whether it is to end."""
        if self.report.loaded:  # it was a reload: better no answers but /health's than no service
            say(f"error: {error} (requests get 503; a reload with SIGHUP tries again)")
            return False
        self.report.fail(error)
        return True

    def _configuration(self) -> dict[str, Any]:
        """Return gunicorn's settings but those of its parser, which `embed.server.request.Rules` fixes."""
        settings = self._settings
        return {
            "bind": f"fd://{self._listener.socket.detach()}",
            "backlog": BACKLOG,
            "workers": 1,  # more would be more copies of the weights, and no batching across requests
            "worker_class": Stand,
            "worker_tmp_dir": SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None,
            "timeout": HEARTBEAT_S,
            "graceful_timeout": settings.graceful,
            "max_requests": 0,
            "preload_app": False,
            "control_socket_disable": True,
            "forwarded_allow_ips": "",
            "proc_name": "embed",
            "loglevel": settings.log_level,
            "accesslog": "-" if settings.access_log else None,
            "access_log_format": ACCESS_LOG,
        }
