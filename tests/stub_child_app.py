"""The service's own application, its forward in a `stub_child`: what `running_worker(app=...)` runs.

STUB_CHILD holds the stub's words. A character is a token, so a text reaches the stub as it was sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import stub_child

from embed.embedder import Embedder
from embed.executor.budgets import Budgets
from embed.executor.supervisor import Supervisor
from embed.server import model_thread
from embed.server.app import Application
from embed.server.limits import Limits
from embed.server.metrics import Metrics
from embed.server.service import Service
from embed.server.settings import Settings
from embed.tokenizer import TokenizedText

LOG = logging.getLogger("gunicorn.error")


@dataclass
class StubConfig:
    width: int = stub_child.DIMENSION


@dataclass
class StubMetadata:
    default_prompt_name: str | None = None
    include_prompt: bool = True


@dataclass
class StubFolder:
    path: str = "models/stub"
    maxseq: int = 512
    pooling: str = "mean"
    has_changed: bool = False
    config: StubConfig = field(default_factory=StubConfig)
    metadata: StubMetadata = field(default_factory=StubMetadata)


class Characters:
    """A tokenizer without a vocabulary."""

    def encode(self, texts: Sequence[str], maxseq: int, *, count_all: bool = True) -> list[TokenizedText]:
        return [TokenizedText(np.array(stub_child.ids_of(text)[:maxseq], np.int32), len(text)) for text in texts]


def create(**constants: float) -> Application:
    """Return the application; `constants` are some of the model thread's, in place of their values."""
    for name, value in constants.items():
        assert hasattr(model_thread, name)
        setattr(model_thread, name, value)
    settings, limits, metrics = (
        Settings.from_environment({"model": "./models/stub"}),
        Limits.from_environment(),
        Metrics(),
    )
    service = Service(
        open_model, limits=limits, metrics=metrics, warmup=settings.warmup, unload_after_s=settings.unload_after
    )
    return Application(service, metrics, settings, limits)


def open_model() -> Embedder:
    command = stub_child.command(*os.environ["STUB_CHILD"].split())
    budgets = Budgets.from_environment()
    engine = Supervisor(command, dimension=stub_child.DIMENSION, budgets=budgets, log=LOG.warning)
    return Embedder(StubFolder(), engine, tokenizer=Characters())  # type: ignore[arg-type]
