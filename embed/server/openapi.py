"""What `/openapi.json` says: every route in OpenAPI 3.1, with this service's model, limits and security.

The tests send what the document allows and forbids to every route, and hold the answers to it.
"""

from __future__ import annotations

from typing import Any

from embed.server.limits import Limits
from embed.server.metrics import CONTENT_TYPE
from embed.server.settings import Settings
from embed.version import __version__

TRUNCATED_HEADER = "Embed-Truncated-Texts"
JSON = "application/json"
# What the worker may answer instead of any route.
BY_THE_WORKER = (
    "BadRequest",
    "TooSlow",
    "UnknownExpectation",
    "HeadTooLarge",
    "Fault",
    "UnknownCoding",
    "Unavailable",
    "Overdue",
    "UnknownVersion",
)
EMBEDDING = (*BY_THE_WORKER, "QueueFull")

About = dict[str, Any]  # a part of the document


def document(settings: Settings, limits: Limits, *, name: str, secured: bool) -> About:
    """Return the OpenAPI document of a service that calls its model `name`; `secured` tells whether it has a token."""
    about: About = {
        "openapi": "3.1.0",
        "info": {
            "title": "embed",
            "version": __version__,
            "summary": f"Text embeddings from {name}",
            "description": _description(secured),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(settings, name, secured),
        "components": {
            "schemas": _schemas(settings, name),
            "responses": _error_responses(settings, limits),
            "headers": dict(_HEADERS),
        },
    }
    components = about["components"]
    if secured:
        components["securitySchemes"] = _SECURITY_SCHEMES
        about["security"] = [{"header": []}, {"query": []}]
        del components["responses"]["Forbidden"]
    else:
        del components["schemas"]["HealthInBrief"]
        del components["responses"]["Unauthorized"], components["responses"]["Busy"]
        del components["headers"]["WWWAuthenticate"]
    return about


def _description(secured: bool) -> str:
    sentences = [
        "HEAD is answered wherever GET is, with the same headers.",
        "Every error is a JSON object with one sentence.",
        "A path that is not here is a 404, a method that a path does not take a 405.",
    ]
    if secured:
        sentences.append(
            "Without the token every path is a 401 but the health check, which then tells only two of its fields."
        )
    return " ".join(sentences)


def _paths(settings: Settings, name: str, secured: bool) -> About:
    errors = ("Unauthorized",) if secured else ()
    return {
        "/create_embedding": {
            "post": {
                "operationId": "create_embedding",
                "summary": "Embed texts",
                "requestBody": _request_body(),
                "responses": _responses(
                    _embeddings(name), *errors, *EMBEDDING, "ContentTooLarge", "UnsupportedMediaType"
                ),
            },
            "get": {
                "operationId": "create_embedding_of_one",
                "summary": "Embed one text",
                "parameters": _parameters(settings),
                "responses": _responses(_embeddings(name), *errors, *EMBEDDING),
            },
        },
        "/health": {"get": _health("health", secured)},
        "/": {"get": _health("health_at_root", secured)},
        "/load": {"post": _operation("load", "Load the model now", secured, "Unavailable")},
        "/unload": {"post": _operation("unload", "Give the model's memory back until it is wanted", secured, "Busy")},
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Counters in Prometheus' text format",
                "responses": _responses(
                    {"description": "The counters", "content": {CONTENT_TYPE: {"schema": {"type": "string"}}}},
                    *errors,
                    *BY_THE_WORKER,
                ),
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document",
                "responses": _responses(_json_response("The document", {"type": "object"}), *errors, *BY_THE_WORKER),
            }
        },
    }


def _health(operation: str, secured: bool) -> About:
    """Return the health check, which is open: the requirement that asks for nothing is one of the alternatives."""
    schema: About = _ref("schemas", "Health")
    about: About = {
        "operationId": operation,
        "summary": "How the service is: at once, also while the model is being loaded or is busy",
    }
    if secured:
        schema = {"anyOf": [schema, _ref("schemas", "HealthInBrief")]}
        about["security"] = [{}, {"header": []}, {"query": []}]
    return {**about, "responses": _responses(_json_response("The service's state", schema), *BY_THE_WORKER)}


def _operation(operation: str, summary: str, secured: bool, *errors: str) -> About:
    """Return what operators may do, of whom only the token tells: a service without one refuses it to everybody."""
    success = _json_response("The service's state afterwards", _ref("schemas", "Health"))
    responses = _responses(success, "Unauthorized", *{*errors, *BY_THE_WORKER})
    if not secured:
        responses = _error_responses_of("Forbidden", *BY_THE_WORKER)
    return {"operationId": operation, "summary": summary, "responses": responses}


def _request_body() -> About:
    examples = {
        "text": {"value": {"text": "Hello, world!"}},
        "texts": {"value": {"texts": ["one", "two"], "normalize": False}},
    }
    return {
        "required": True,
        "description": "UTF-8, not compressed; another media type, or none, is read as JSON too.",
        "content": {JSON: {"schema": _ref("schemas", "Request"), "examples": examples}},
    }


def _parameters(settings: Settings) -> list[About]:
    normalize = "`false` turns normalisation off, any other word on; left out, it is " + _default(settings)
    return [
        {
            "name": "text",
            "in": "query",
            "required": True,
            "description": "The text, percent-encoded as UTF-8; `+` is a space. It may be empty.",
            "schema": {"type": "string"},
            "example": "Hello, world!",
        },
        {
            "name": "normalize",
            "in": "query",
            "description": normalize,
            "schema": {"type": "string"},
            "example": "true",
        },
    ]


def _embeddings(name: str) -> About:
    example = {"embeddings": [[0.6, -0.8]], "model": name, "dimension": 2}
    response = _json_response("A vector a text, in the order of the texts", _ref("schemas", "Embeddings"), example)
    return {**response, "headers": {TRUNCATED_HEADER: _ref("headers", "TruncatedTexts")}}


def _schemas(settings: Settings, name: str) -> About:
    text = {"type": "string", "description": "A lone surrogate is refused."}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": settings.max_texts}
    normalize = {
        "type": ["boolean", "null"],
        "description": "Whether vectors have length 1; null or left out, it is " + _default(settings),
    }
    return {
        "Request": {
            "type": "object",
            "description": "`text` or `texts`, each a string or a list of them. Other keys are ignored.",
            "properties": {"normalize": normalize},
            "oneOf": [
                {"required": [given], "properties": {given: _ref("schemas", "Texts"), other: {"type": "null"}}}
                for given, other in (("text", "texts"), ("texts", "text"))
            ],
        },
        "Texts": {"anyOf": [text, texts]},
        "Embeddings": {
            "type": "object",
            "required": ["embeddings", "model", "dimension"],
            "properties": {
                "embeddings": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "number", "description": "The shortest digits that read back to its f32."},
                    },
                },
                "model": {"type": "string", "examples": [name]},
                "dimension": {"type": "integer", "minimum": 1, "description": "The length of each vector"},
            },
        },
        "Health": {"type": "object", "required": [*_HEALTH], "properties": _health_properties(name)},
        "HealthInBrief": {
            "type": "object",
            "description": "What is told without the token",
            "required": ["status", "model_loaded"],
            "properties": {key: _HEALTH[key] for key in ("status", "model_loaded")},
            "additionalProperties": False,
        },
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {"error": {"type": "string", "minLength": 1, "description": "One sentence"}},
            "additionalProperties": False,
        },
    }


def _health_properties(name: str) -> About:
    error = {"type": "string", "description": "What is wrong with the model, where `status` is degraded"}
    return {**_HEALTH, "model": {**_HEALTH["model"], "examples": [name]}, "error": error}


def _error_responses(settings: Settings, limits: Limits) -> About:
    queue = f"{limits.queue_requests:,} requests or {limits.queue_tokens:,} tokens"
    retry = {"Retry-After": _ref("headers", "RetryAfter")}
    too_large = (
        f"The body is over {limits.body_bytes:,} bytes, {limits.commas:,} commas or half as many colons or brackets, "
        f"or has more than {settings.max_texts:,} texts"
    )
    return {
        "BadRequest": _error("The request, its query or its body is malformed, or names no text"),
        "Unauthorized": _error(
            "The token is missing or wrong", {"WWW-Authenticate": _ref("headers", "WWWAuthenticate")}
        ),
        "Forbidden": _error("The service has no token, and without one nobody may do this"),
        "Busy": _error("Requests are being computed"),
        "NotFound": _error("Nothing is at this path"),
        "MethodNotAllowed": _error("The path does not take this method", {"Allow": _ref("headers", "Allow")}),
        "TooSlow": _error(
            f"The request's head took over {limits.idle_s:g} s, or its body made no progress for so long"
        ),
        "ContentTooLarge": _error(too_large),
        "UnsupportedMediaType": _error("The body has a charset other than UTF-8, or is compressed"),
        "UnknownExpectation": _error("The Expect header asks for something other than 100-continue"),
        "QueueFull": _error(f"{queue} wait already", retry),
        "HeadTooLarge": _error(f"The request line and the header fields are over {limits.head_bytes:,} bytes"),
        "Fault": _error("A text could not be embedded, and the error has its index; or a fault in the service"),
        "UnknownCoding": _error("The body has a transfer coding other than chunked"),
        "Unavailable": _error("The model could not be loaded, or the service is ending, or short of room", retry),
        "Overdue": _error(f"The answer took over {limits.request_s:g} s"),
        "UnknownVersion": _error("The HTTP version is neither 1.0 nor 1.1"),
    }


def _responses(success: About, *errors: str) -> About:
    return {"200": success, **_error_responses_of(*errors)}


def _error_responses_of(*errors: str) -> About:
    return {_STATUS[error]: _ref("responses", error) for error in sorted(errors, key=_STATUS.__getitem__)}


def _json_response(description: str, schema: About, example: About | None = None) -> About:
    content = {"schema": schema} if example is None else {"schema": schema, "example": example}
    return {"description": description, "content": {JSON: content}}


def _error(description: str, headers: About | None = None) -> About:
    response = _json_response(description, _ref("schemas", "Error"))
    return {**response, "headers": headers} if headers else response


def _ref(kind: str, name: str) -> About:
    return {"$ref": f"#/components/{kind}/{name}"}


def _default(settings: Settings) -> str:
    return "off in this service" if settings.no_normalize else "on"


_STATUS = {
    "BadRequest": "400",
    "Unauthorized": "401",
    "Forbidden": "403",
    "TooSlow": "408",
    "Busy": "409",
    "ContentTooLarge": "413",
    "UnsupportedMediaType": "415",
    "UnknownExpectation": "417",
    "QueueFull": "429",
    "HeadTooLarge": "431",
    "Fault": "500",
    "UnknownCoding": "501",
    "Unavailable": "503",
    "Overdue": "504",
    "UnknownVersion": "505",
}
_SECURITY_SCHEMES: About = {
    "header": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer TOKEN"},
    "query": {"type": "apiKey", "in": "query", "name": "token", "description": "Not read where the header is given"},
}
_COUNT = {"type": "integer", "minimum": 0}
_HEADERS: About = {
    "TruncatedTexts": {
        "description": "How many of the texts were longer than the model takes, and were cut",
        "required": True,
        "schema": _COUNT,
    },
    "RetryAfter": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}},
    "WWWAuthenticate": {"required": True, "schema": {"type": "string", "const": "Bearer"}},
    "Allow": {"description": "The methods that it takes", "required": True, "schema": {"type": "string"}},
}
_HEALTH: About = {
    "status": {"enum": ["healthy", "degraded", "draining"]},
    "model": {"type": "string"},
    "model_loaded": {"type": "boolean"},
    "device": {"enum": ["cpu", "cuda", "none"], "description": "none while no model is loaded"},
    "device_name": {"type": ["string", "null"]},
    "dimension": {"type": ["integer", "null"], "minimum": 1},
    "max_seq": {"type": ["integer", "null"], "minimum": 1, "description": "A longer text is cut to so many tokens"},
    "requests": {**_COUNT, "description": "Requests for embeddings so far"},
    "unload_after_s": {"type": "number", "minimum": 0, "description": "0: the model stays loaded"},
    "loads": _COUNT,
    "unloads": _COUNT,
    "last_load_ms": {"type": ["integer", "null"], "minimum": 0},
    "idle_s": {"type": "number", "minimum": 0},
    "executor": {
        "type": "object",
        "description": "The process that computes",
        "required": ["pid", "restarts", "last_failure"],
        "properties": {
            "pid": {"type": ["integer", "null"], "minimum": 1},
            "restarts": _COUNT,
            "last_failure": {"type": ["string", "null"], "description": "How the last one died"},
        },
    },
}
