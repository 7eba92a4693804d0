"""The routes of the server, as a starlette application."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tinylm.config import ModelConfig, ServeConfig
from tinylm.constraints import compile
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE, contract
from tinylm.errors import RequestError
from tinylm.generate import Engine, Task
from tinylm.serve import native, openai
from tinylm.serve.answers import Answer, encode_json
from tinylm.serve.fields import parse_object
from tinylm.serve.protocol import NativeWire, OpenAIWire, Wire
from tinylm.serve.refusals import Refusal
from tinylm.serve.requests import Completion, Limits
from tinylm.serve.scheduler import Scheduler
from tinylm.serve.streams import Exchanged, Patience
from tinylm.tokenizer import debug_decode

BODY_SECONDS = 30.0
PUBLIC = ("/", "/health", "/v1/health")


@dataclass(frozen=True)
class Served:
    """The model that is served, as answers name it. `step`: None where the file does not say."""

    name: str
    config: ModelConfig
    parameters: int
    size: int
    digest: str
    step: int | None
    version: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def fingerprint(self) -> str:
        """Equal for equal weights under an equal version."""
        return f"b{self.version}-{self.digest[:8]}"


class Server:
    """The state behind the routes. `log` is told a line per request and what must not happen."""

    def __init__(
        self, engine: Engine, served: Served, config: ServeConfig, key: str | None, log: Callable[[str], None]
    ) -> None:
        self.engine, self.served, self.config, self.key, self.log = engine, served, config, key, log
        self.limits = Limits(
            window=served.config.window,
            prompts=config.slots + config.queue,
            prompt_tokens=config.max_prompt,
            seed=config.seed,
            speculate=config.speculate,
        )
        self.patience = Patience(
            config.queue_seconds, config.request_seconds, config.stall_seconds, config.ping_seconds
        )
        self.scheduler: Scheduler
        self.page = page()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Start the engine's thread; stop it, and what it still runs, at the end."""
        self.scheduler = Scheduler(self.engine, self.config.slots, self.config.queue, self.log)
        try:
            yield
        finally:
            await self.scheduler.close(0.0)

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request, with its size, time and type checked."""
        kind, _, parameters = request.headers.get("content-type", "").partition(";")
        charset = parameters.strip().lower().removeprefix("charset=").strip('"')
        if kind.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
            found = request.headers.get("content-type", "none")
            raise Refusal(400, f"content-type is {found}, expected application/json")
        return parse_object(await read_body(request, self.config.max_body))

    # Completions.

    async def native_completion(self, request: Request) -> ASGIApp:
        found = native.read_completion(await self.body(request), self.limits)
        return await self.exchanged(request, found, NativeWire(found, self.served.name))

    async def openai_completion(self, request: Request) -> ASGIApp:
        found = openai.read_completion(await self.body(request), self.limits)
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint,
        }
        return await self.exchanged(request, found, OpenAIWire(found, head))

    async def exchanged(self, request: Request, found: Completion, wire: Wire) -> ASGIApp:
        """Hand the generations of a request to the engine; the answer is sent as they go."""
        constraint = None
        if found.constraint:
            try:
                constraint = await asyncio.to_thread(compile, **found.constraint)
            except RequestError as error:
                raise Refusal(400, str(error)) from None
        keep = found.probabilities and not found.stream
        answers = [Answer(index, choice, keep) for index, choice in enumerate(found.choices)]
        tasks = [
            Task(choice.prompt.ids, choice.config, found.bias, found.top, found.cache_prompt, constraint)
            for choice in found.choices
        ]
        exchange = self.scheduler.submit(tasks, answers, paced=found.stream, watched=found.return_progress)

        def done(status: int, word: str) -> None:
            self.log(line(request, status, answers, word))

        return Exchanged(self.scheduler, exchange, found, wire, self.patience, done)

    # Everything else.

    async def tokenize(self, request: Request) -> ASGIApp:
        return answer_json(native.tokenize(await self.body(request)))

    async def detokenize(self, request: Request) -> ASGIApp:
        return answer_json(native.detokenize(await self.body(request)))

    async def health(self, request: Request) -> ASGIApp:
        if self.scheduler.stopping:
            raise Refusal(503, "the server is stopping")
        return answer_json({"status": "ok"})

    async def props(self, request: Request) -> ASGIApp:
        model = self.served.config
        params = native.default_settings(self.config.seed)
        return answer_json(
            {
                "default_generation_settings": {"params": params, "n_ctx": model.window},
                "total_slots": self.config.slots,
                "model_alias": self.served.name,
                "model_path": self.served.name,
                "modalities": {"vision": False, "audio": False},
                "chat_template": "",
                "bos_token": debug_decode((DOC_BOUNDARY,)),
                "eos_token": debug_decode((DOC_BOUNDARY,)),
                "build_info": f"tinylm {self.served.version}",
                "is_sleeping": False,
                "tinylm": {
                    "version": self.served.version,
                    "contract": contract(),
                    "policy": model.policy,
                    "step": self.served.step,
                    "sha256": self.served.digest,
                },
            }
        )

    async def slots(self, request: Request) -> ASGIApp:
        return answer_json([self.slot(number) for number in range(self.config.slots)])

    def slot(self, number: int) -> dict[str, Any]:
        """A slot, without the text in it."""
        job = self.scheduler.active.get(number)
        found: dict[str, Any] = {"id": number, "n_ctx": self.served.config.window, "is_processing": bool(job)}
        if job is not None:
            answer = job.answer
            found["n_prompt_tokens"] = answer.prompt_tokens
            remain = answer.choice.config.max_tokens - answer.tokens
            found["next_token"] = {"n_decoded": answer.tokens, "n_remain": remain, "has_next_token": True}
            found["is_paused"] = job.exchange.paused
        return found

    async def models(self, request: Request) -> ASGIApp:
        served, window = self.served, self.served.config.window
        meta = {
            "n_vocab": VOCABULARY_SIZE,
            "n_ctx": window,
            "n_ctx_train": window,
            "n_embd": served.config.width,
            "n_params": served.parameters,
            "size": served.size,
        }
        model = {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "tinylm",
            "meta": meta,
        }
        return answer_json({"object": "list", "data": [model]})

    async def metrics(self, request: Request) -> ASGIApp:
        scheduler = self.scheduler
        values = {
            "prompt_tokens_total": ("counter", scheduler.prompted),
            "tokens_predicted_total": ("counter", scheduler.sampled),
            "generations_total": ("counter", scheduler.finished),
            "draft_tokens_total": ("counter", scheduler.drafted),
            "draft_tokens_accepted_total": ("counter", scheduler.accepted),
            "requests_processing": ("gauge", len(scheduler.active)),
            "requests_deferred": ("gauge", scheduler.waiting),
        }
        text = "".join(
            f"# TYPE tinylm_{name} {kind}\ntinylm_{name} {value}\n" for name, (kind, value) in values.items()
        )
        return Response(text, media_type="text/plain; version=0.0.4")

    async def index(self, request: Request) -> ASGIApp:
        body, policy = self.page
        headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }
        return Response(body, media_type="text/html", headers=headers)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Every error as JSON, with its line in the log."""
        if isinstance(error, ClientDisconnect):
            refusal = Refusal(408, "the client went away while it sent the request")
        elif isinstance(error, Refusal):
            refusal = error
        elif isinstance(error, HTTPException):
            allowed = error.headers and error.headers.get("Allow")
            message = f"{request.url.path} takes {allowed} only" if allowed else "File Not Found"
            refusal = Refusal(error.status_code, message, headers=dict(error.headers or {}))
        else:
            refusal = Refusal(500, "internal error; the server's log has the traceback")
        self.log(line(request, refusal.status, [], refusal.type))
        return answer_json(refusal.body(), refusal.status, refusal.headers)


def create_app(
    engine: Engine,
    served: Served,
    config: ServeConfig,
    key: str | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Starlette:
    """The application. `key`: asked for on all routes but PUBLIC, if it is not None."""
    server = Server(engine, served, config, key, log)
    routes = [
        Route("/", server.index, methods=["GET"]),
        Route("/health", server.health, methods=["GET"]),
        Route("/v1/health", server.health, methods=["GET"]),
        Route("/props", server.props, methods=["GET"]),
        Route("/slots", server.slots, methods=["GET"]),
        Route("/metrics", server.metrics, methods=["GET"]),
        Route("/models", server.models, methods=["GET"]),
        Route("/v1/models", server.models, methods=["GET"]),
        Route("/completion", server.native_completion, methods=["POST"]),
        Route("/completions", server.native_completion, methods=["POST"]),
        Route("/v1/completions", server.openai_completion, methods=["POST"]),
        Route("/tokenize", server.tokenize, methods=["POST"]),
        Route("/detokenize", server.detokenize, methods=["POST"]),
    ]
    middleware = [Middleware(Guard, server=server)]
    if config.cors_origin:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
        middleware.insert(0, cors)
    kinds = (HTTPException, Refusal, ClientDisconnect, Exception)
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=server.lifespan,
        exception_handlers=dict.fromkeys(kinds, server.refuse),
    )
    app.router.redirect_slashes = False
    app.state.server = server
    return app


class Guard:
    """Refuses calls under a foreign name on loopback (DNS rebinding), and calls without the key."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server
        self._hosts = hosts(server.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            problem = self._problem(request)
            if problem is not None:
                await (await self._server.refuse(request, problem))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, request: Request) -> Refusal | None:
        host = request.headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return Refusal(
                403, f"host is {host!r}, which is no name of this machine; allow it with --allow-host"
            )
        if self._server.key is None or request.url.path in PUBLIC:
            return None
        # Header bytes arrive as Latin-1, one character a byte.
        given = request.headers.get("x-api-key") or bearer(request.headers.get("authorization", ""))
        if hmac.compare_digest(given.encode("latin-1"), self._server.key.encode("utf-8")):
            return None
        return Refusal(401, "Invalid API Key", headers={"www-authenticate": "Bearer"})


def bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def hosts(config: ServeConfig) -> frozenset[str] | None:
    """The names under which a server on loopback may be called; None where others may reach it anyway."""
    loopback = config.host in ("localhost", "::1") or config.host.startswith("127.")
    if not loopback:
        return None
    return frozenset({"localhost", "127.0.0.1", "::1", config.host, *config.allow_host})


def host_name(value: str) -> str:
    """The name in a Host header, without its port."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::\d+)?", value)
    return bracketed[1].lower() if bracketed else value.partition(":")[0].lower()


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request. Raises Refusal 413 beyond `most` bytes, 408 where it comes too slowly."""
    close = {"connection": "close"}
    too_large = Refusal(413, f"body: more than {most} bytes; send less, or raise --max-body", headers=close)
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most and request.headers.get("expect"):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > 16 * most:
                    raise too_large
                # The rest is read and forgotten, so that the client gets to read the answer.
                if size <= most:
                    parts.append(part)
    except TimeoutError:
        raise Refusal(408, f"body: did not arrive in {BODY_SECONDS:g} seconds", headers=close) from None
    if size > most:
        raise too_large
    return b"".join(parts)


def answer_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer in ASCII."""
    kind = "application/json; charset=utf-8"
    return Response(encode_json(value), status, dict(headers or {}), media_type=kind)


def page() -> tuple[bytes, str]:
    """The page at /, and a content security policy that allows its own script and style and nothing else."""
    body = (files("tinylm.serve") / "page" / "index.html").read_bytes()

    def digests(tag: bytes) -> str:
        parts = re.findall(rb"<%s(?:\s[^>]*)?>(.*?)</%s>" % (tag, tag), body, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(part).digest()).decode("ascii") for part in parts)
        return " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"

    policy = (
        f"default-src 'none'; script-src {digests(b'script')}; style-src {digests(b'style')}; "
        "connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return body, policy


def line(request: Request, status: int, answers: list[Answer], word: str) -> str:
    """A line of the log: no text of a prompt or an answer."""
    client = request.client.host if request.client else "-"
    # As it was sent, so that no line break in it begins a line of its own.
    path = request.scope.get("raw_path", b"").decode("ascii", "backslashreplace")
    text = f"{client} {request.method} {path} {status or '-'} {word}"
    if not answers:
        return text
    prompt = sum(answer.prompt_tokens for answer in answers)
    sampled = sum(answer.tokens for answer in answers)
    began = [answer for answer in answers if answer.tokens]
    seconds = max((a.last for a in began), default=0.0) - min((a.first for a in began), default=0.0)
    speed = f"{(sampled - len(began)) / seconds:.1f}" if seconds > 0 else "-"
    return f"{text}, {prompt} prompt tokens, {sampled} sampled, {speed} tokens/s"
