"""The HTTP service: `create_app` makes the WSGI application, `Worker` is the gunicorn worker that it needs.

gunicorn -k embed.server.Worker 'embed.server:create_app("path/to/model")'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embed.server.app import create_app
    from embed.server.worker import Worker

__all__ = ["Worker", "create_app"]


def __getattr__(name: str) -> Any:
    """Import on first use: the master process of gunicorn names both, but only a worker needs NumPy and Falcon."""
    if name == "create_app":
        from embed.server.app import create_app

        return create_app
    if name == "Worker":
        from embed.server.worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
