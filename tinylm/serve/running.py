"""uvicorn around the application: one process, one connection class, a stop that ends in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tinylm.config import ServeConfig
from tinylm.errors import ConfigError
from tinylm.serve.answers import encode_json
from tinylm.serve.app import Server
from tinylm.serve.refusals import Refusal

WRITE_BUFFER = 16_384
"""Bytes that may wait in this process for a client that does not read; the kernel holds about as many."""

HEADER_SECONDS = 15.0
LINGER_SECONDS = 30.0
"""How long the end of an answer may wait for a client that does not read."""


class Connection(H11Protocol):
    """A connection with small buffers, whose transport the application can abort."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WRITE_BUFFER)
        self.app_state = {**self.app_state, "transport": transport}
        self._timer = self.loop.call_later(HEADER_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waiting = self.cycle is None or self.cycle.response_complete
        if self._timer is not None and not waiting:
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and waiting and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEADER_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            # Closing waits for the buffer to drain, which may be never.
            self.loop.call_later(LINGER_SECONDS, self._unread, self.cycle)

    def _unread(self, cycle: RequestResponseCycle) -> None:
        """An answer is still not read: give up on the client."""
        if self.cycle is cycle and self.transport.get_write_buffer_size():
            self.transport.abort()

    def _late(self) -> None:
        """The head of a request did not arrive in time."""
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        body = encode_json(Refusal(400, f"not HTTP as expected: {msg}").body())
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json; charset=utf-8\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()


class Listener(uvicorn.Server):
    """uvicorn's server that leaves signals to its caller and ends what runs before it waits for it."""

    def __init__(self, app: Starlette, config: ServeConfig, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(config.grace_seconds) + 2),
                timeout_keep_alive=75,
            )
        )
        self._server: Server = app.state.server
        self._grace = config.grace_seconds
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self.servers:
            listener.close()
        await self._server.scheduler.close(self._grace)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def listen(config: ServeConfig) -> socket.socket:
    """A listening socket. Raises ConfigError for a host that is not here or a port that is taken."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a name"
        raise ConfigError(f"host is {config.host!r}: {reason}; 127.0.0.1 is this machine alone") from None
    family, kind, number, _, address = found[0]
    sock = socket.socket(family, kind, number)
    try:
        if os.name == "posix":  # elsewhere it would share the port with another server
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(512)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"port {config.port} of {config.host}: {error.strerror}; "
            "choose another with --port (0: a free one)"
        ) from None
    return sock


def url(config: ServeConfig, sock: socket.socket) -> str:
    """Where a browser on this machine finds the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    port: Any = sock.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def quiet_logs() -> None:
    """Let uvicorn say only what must not happen."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
