"""HTTP as the audit needs it: JSON requests to one server, answers as bytes, nothing followed or retried
but a queue that is full. Standard library only; proxies of the environment are not used."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tinylm.errors import RequestError
from tinylm.files import parse_json
from tinylm.serve.audit.sse import LONGEST

PATIENCE = 10
"""A request may take this many times the time for which a server may be silent."""

TRIES = 6
"""How often a request is sent to a server that says its queue is full (429)."""


class Lost(Exception):
    """The connection broke, or nothing came for too long; the message says which."""


@dataclass
class Reply:
    """The head of an answer, and its body as the bytes come."""

    status: int
    content_type: str
    retry_after: str
    body: Iterator[bytes]

    def read(self) -> bytes:
        """The whole body. Raises Lost where it is cut short."""
        whole = bytearray()
        for part in self.body:
            whole += part
            if len(whole) > LONGEST:
                raise Lost(f"an answer of more than {LONGEST:,} bytes")
        return bytes(whole)


class Server:
    """One server at a URL such as http://127.0.0.1:8080; raises RequestError where that is not one."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise RequestError(f"{url}: not a URL ({error}); expected http://HOST:PORT") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"{url}: expected a server's address such as http://127.0.0.1:8080")
        if parts.query or parts.fragment or parts.username is not None:
            raise RequestError(f"{url}: expected http://HOST:PORT alone; a key goes with --api-key")
        if any(ord(character) <= 32 or ord(character) > 126 for character in url):
            raise RequestError(f"{url!r}: a character that no URL has; expected printable ASCII")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._headers = {"Connection": "close", "User-Agent": "tinylm-audit"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> Reply:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send JSON; a server that says it is full is asked again when it says, a few times."""
        for attempt in range(TRIES):
            reply = self._send("POST", path, json.dumps(body).encode("ascii"))
            if reply.status != 429 or attempt == TRIES - 1:
                break
            reply.read()
            time.sleep(pause(reply.retry_after, self.timeout))
        return reply

    def json(self, path: str) -> Any:
        """What a GET answers, or None where it answers no JSON with status 200."""
        try:
            reply = self.get(path)
            return parse_json(reply.read(), path, RequestError) if reply.status == 200 else None
        except (Lost, RequestError):
            return None

    def _send(self, method: str, path: str, body: bytes | None) -> Reply:
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self.timeout, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self.timeout)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        deadline = time.monotonic() + PATIENCE * self.timeout
        try:
            connection.request(method, self._path + path, body, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Lost(told(error, self.timeout)) from None
        return Reply(
            response.status,
            response.getheader("Content-Type") or "",
            response.getheader("Retry-After") or "",
            self._body(connection, response, deadline),
        )

    def _body(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        deadline: float,
    ) -> Iterator[bytes]:
        try:
            while True:
                if time.monotonic() > deadline:
                    raise Lost(f"no end after {PATIENCE * self.timeout:g} s")
                part = response.read1(1 << 16)
                if not part:
                    if response.length:  # http.client takes a body shorter than its Content-Length
                        raise Lost(f"the connection closed {response.length} bytes before the end")
                    return
                yield part
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Lost(told(error, self.timeout)) from None
        finally:
            connection.close()


def pause(retry_after: str, longest: float) -> float:
    """Seconds to wait, from the header Retry-After (only its form in seconds); 1 where it says nothing."""
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1.0
    return min(seconds, longest)


def told(error: Exception, timeout: float) -> str:
    """What went wrong with a connection, in a few words."""
    if isinstance(error, TimeoutError):
        return f"nothing came for {timeout:g} s"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection closed in the middle of the answer"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection closed before an answer"
    if isinstance(error, http.client.HTTPException):
        return f"not HTTP ({type(error).__name__})"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
