"""The service's routes as one would write them with FastAPI, on the same `embed.Embedder`: what ours is held against.

    python fastapi_twin.py MODEL_DIR TOKEN

Serves on a free port of loopback, and prints its URL. Written from the documented API, not from our code.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, StrictBool, ValidationError, model_validator
from starlette.exceptions import HTTPException as StarletteHTTPException

import embed

MAX_TEXTS = 100
MAX_BODY = 1 << 20
UNAUTHORIZED = "unauthorized - pass 'Authorization: Bearer <token>'"


class EmbeddingRequest(BaseModel):
    text: str | list[str] | None = None
    texts: str | list[str] | None = None
    normalize: StrictBool | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> EmbeddingRequest:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give text or texts")
        return self

    @property
    def all_texts(self) -> list[str]:
        given = self.texts if self.text is None else self.text
        return [given] if isinstance(given, str) else given or []


class EmbeddingResponse(BaseModel):
    embeddings: list[list[float]]
    model: str
    dimension: int


async def posted(request: Request) -> EmbeddingRequest:
    """Read a body whatever its media type, as long as it is plain JSON in UTF-8."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "send plain JSON")
    _, _, charset = request.headers.get("content-type", "").partition("charset=")
    if charset.lower() not in ("", "utf-8"):
        raise HTTPException(415, "send UTF-8")
    body = await request.body()
    if len(body) > MAX_BODY:
        raise HTTPException(413, "the body is too large")
    try:
        return EmbeddingRequest.model_validate_json(body.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as ex:
        raise HTTPException(400, str(ex.errors()[0]["msg"])) from ex


def create_app(directory: str, token: str) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    embedder = embed.load(directory)
    name, lock = directory.rstrip("/").split("/")[-1], threading.Lock()

    def answer(texts: list[str], normalize: bool | None) -> EmbeddingResponse:
        if not texts:
            raise HTTPException(400, "no text given")
        if len(texts) > MAX_TEXTS:
            raise HTTPException(413, "too many texts")
        try:
            with lock:
                vectors = embedder.encode(texts, normalize=normalize)
        except embed.EmbedError as ex:
            raise HTTPException(500, str(ex)) from ex
        return EmbeddingResponse(embeddings=vectors.tolist(), model=name, dimension=embedder.dimension)

    @app.post("/create_embedding")
    def post_embedding(request: Annotated[EmbeddingRequest, Depends(posted)]) -> EmbeddingResponse:
        return answer(request.all_texts, request.normalize)

    @app.api_route("/create_embedding", methods=["GET", "HEAD"])
    def get_embedding(text: str, normalize: str = "true") -> EmbeddingResponse:
        return answer([text], normalize.lower() != "false")

    @app.api_route("/health", methods=["GET", "HEAD"])
    @app.api_route("/", methods=["GET", "HEAD"])
    def health(request: Request) -> dict[str, Any]:
        state = {"status": "healthy", "model_loaded": True}
        return {**state, **details()} if trusted(request) else state

    def details() -> dict[str, Any]:
        return {
            "model": name,
            "device": "cpu",
            "device_name": embedder.device,
            "dimension": embedder.dimension,
            "max_seq": embedder.maxseq,
            "requests": 0,
            "unload_after_s": 0,
            "loads": 1,
            "unloads": 0,
            "last_load_ms": 1,
            "idle_s": 0.5,
            "executor": {"pid": 1, "restarts": 0, "last_failure": None},
        }

    def trusted(request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            given = request.query_params.get("token", "")
        elif scheme.lower() != "bearer":
            given = ""
        return secrets.compare_digest(given.encode(), token.encode())

    @app.middleware("http")
    async def check_token(request: Request, call_next: Any) -> Response:
        if request.url.path not in ("/", "/health") and not trusted(request):
            return JSONResponse({"error": UNAUTHORIZED}, 401, {"WWW-Authenticate": "Bearer"})
        return await call_next(request)

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, ex: StarletteHTTPException) -> Response:
        return JSONResponse({"error": ex.detail}, ex.status_code, ex.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, ex: RequestValidationError) -> Response:
        return JSONResponse({"error": ex.errors()[0]["msg"]}, 422)

    return app


def main() -> None:
    app = create_app(*sys.argv[1:])
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"http://127.0.0.1:{server.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[server])


if __name__ == "__main__":
    main()
