"""The service that people write: FastAPI, pydantic and sentence-transformers. `serving.py` compares with it.

    PYTHON benchmarks/fastapi_service.py MODEL_DIR --port 8001    serve on loopback until ended
    PYTHON benchmarks/fastapi_service.py --versions               print what it is made of

A `def` endpoint, which FastAPI runs on its thread pool; pydantic in and out; one uvicorn process, with uvloop and
httptools where they are installed and no access log; a lock around `encode`, since two forwards at once would fight
for the cores; PyTorch's own threads.
"""

from __future__ import annotations

import argparse
import threading
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class EmbeddingRequest(BaseModel):
    text: str | list[str]
    normalize: bool = True


class EmbeddingResponse(BaseModel):
    embeddings: list[list[float]]
    model: str
    dimension: int


def create_app(directory: str) -> FastAPI:
    app = FastAPI()
    model = SentenceTransformer(directory, device="cpu")
    name, lock = Path(directory).name, threading.Lock()

    @app.post("/create_embedding")
    def create_embedding(request: EmbeddingRequest) -> EmbeddingResponse:
        texts = [request.text] if isinstance(request.text, str) else request.text
        with lock:
            vectors = model.encode(texts, normalize_embeddings=request.normalize, show_progress_bar=False)
        return EmbeddingResponse(embeddings=vectors.tolist(), model=name, dimension=vectors.shape[1])

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy", "model": name}

    return app


def versions() -> str:
    packages = ["sentence-transformers", "torch", "fastapi", "uvicorn"]
    packages += [package for package in ("uvloop", "httptools") if find_spec(package)]
    return ", ".join(f"{package} {metadata.version(package)}" for package in packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--versions", action="store_true")
    options = parser.parse_args()
    if options.versions:
        print(versions())
    elif options.model is None:
        parser.error("name a model directory")
    else:
        uvicorn.run(create_app(options.model), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
