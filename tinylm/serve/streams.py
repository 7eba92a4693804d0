"""Answers over HTTP: a stream, or all at once; both end their work when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from tinylm.serve.answers import PING, Answer, encode_json
from tinylm.serve.protocol import Wire, encode_refusal
from tinylm.serve.refusals import Refusal
from tinylm.serve.requests import Completion
from tinylm.serve.scheduler import Begun, Exchange, Read, Scheduler, Token, internal

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
JSON_HEADERS = [(b"content-type", b"application/json; charset=utf-8")]


class Patience:
    """The time limits of a request, in seconds; 0 is none."""

    def __init__(self, queue: float, request: float, stall: float, ping: float) -> None:
        self.queue, self.request, self.stall, self.ping = queue, request, stall, ping


class Client:
    """The other end of a request: sends to it with a time limit, and knows when it has gone."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stall: float) -> None:
        self._scope, self._receive, self._send, self._stall = scope, receive, send, stall
        self._gone = asyncio.create_task(self._watch())
        self.stalled = False

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @property
    def gone(self) -> asyncio.Task[None]:
        """Done once the client has disconnected."""
        return self._gone

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message; a client that reads nothing for too long is disconnected."""
        try:
            async with asyncio.timeout(self._stall or None):
                await self._send(message)
        except TimeoutError:
            self.stalled = True
            self.drop()
            await asyncio.wait({self._gone})

    def drop(self) -> None:
        """Close the connection now, with what is unsent in its buffer."""
        transport = self._scope.get("state", {}).get("transport")
        if transport is None:
            self._gone.cancel()
        else:
            transport.abort()

    async def release(self) -> None:
        """Stop watching."""
        self._gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._gone


class Exchanged:
    """An ASGI application that answers one request whose generations are under way.

    `done` is told how it ended: the status and a word (an end, `gone`, `stalled` or an error's type).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        exchange: Exchange,
        request: Completion,
        wire: Wire,
        patience: Patience,
        done: Callable[[int, str], None],
    ) -> None:
        self._scheduler, self._exchange, self._request, self._wire = scheduler, exchange, request, wire
        self._patience, self._done = patience, done
        self._answers: Sequence[Answer] = [job.answer for job in exchange.jobs]
        self._born = time.monotonic()
        self._status = 0
        self._word = "gone"
        self._failed: Refusal | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send, self._patience.stall)
        work = asyncio.create_task(self._stream(client) if self._request.stream else self._whole(client))
        try:
            await asyncio.wait({work, client.gone}, return_when=asyncio.FIRST_COMPLETED)
            if client.stalled:
                self._word = "stalled"
            if work.done():
                work.result()
        finally:
            self._scheduler.cancel(self._exchange)
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            await client.release()
            self._done(self._status, self._word)

    @property
    def _unfinished(self) -> bool:
        """Whether an end is still to come, or to be taken."""
        return self._failed is not None or any(answer.end is None for answer in self._answers)

    async def _whole(self, client: Client) -> None:
        try:
            while self._unfinished:
                await self._take(None)
            value = self._wire.whole(self._answers)
        except Exception as error:
            await self._refuse(client, self._told(error))
            return
        self._word = ends(self._answers)
        await self._answer(client, 200, value, [])

    async def _stream(self, client: Client) -> None:
        """Events as they come; an error before the first of them is an answer with its own status."""
        ping = self._patience.ping if self._request.ping_seconds is None else self._request.ping_seconds
        sent = [self._wire.ended(answer) for answer in self._answers if answer.end is not None]
        try:
            while sent or self._unfinished:
                frames = b"".join(sent) if sent else await self._take(ping if ping > 0 else None)
                sent = []
                if frames and not self._status:
                    await self._start(client, 200, STREAM_HEADERS)
                if frames:
                    await client.send({"type": "http.response.body", "body": frames, "more_body": True})
                self._scheduler.taken(self._exchange)
        except Exception as error:
            refusal = self._told(error)
            if not self._status:
                await self._refuse(client, refusal)
                return
            self._word = refusal.type
            last = encode_refusal(refusal)
        else:
            self._word = ends(self._answers)
            last = self._wire.closed(self._answers)
        await client.send({"type": "http.response.body", "body": last})

    def _told(self, error: Exception) -> Refusal:
        """What a client is told of an error; one of our own goes to the log."""
        if isinstance(error, Refusal):
            return error
        self._scheduler.report(traceback.format_exc())
        return internal()

    async def _take(self, ping: float | None) -> bytes:
        """The bytes of what has arrived; a ping if nothing came. Raises Refusal for an error or a limit.

        What was sampled before an error comes first, the error with the next call.
        """
        if self._failed is not None:
            raise self._failed
        asked = time.monotonic()
        limits = [] if ping is None else [ping]
        if self._patience.request:
            limits.append(self._born + self._patience.request - asked)
        if self._patience.queue and not self._exchange.begun:
            limits.append(self._born + self._patience.queue - asked)
        news = await self._exchange.take(max(0.0, min(limits)) if limits else None)
        if not news:
            now = time.monotonic()
            self._check_time(now - self._born)
            return PING if ping is not None and now - asked >= ping else b""
        frames = []
        for job, message in news:
            answer = job.answer
            if isinstance(message, Refusal):
                self._failed = message
                break
            if isinstance(message, Begun):
                frames.append(self._wire.begun(answer))
            elif isinstance(message, Read):
                frames.append(self._wire.read(answer, message.tokens, message.at))
            elif isinstance(message, Token):
                answer.add(message.sampled, message.at)
                answer.drafted, answer.accepted = message.drafted, message.accepted
                if self._request.stream:
                    frames.append(self._wire.token(answer, message.sampled, message.at))
                if message.sampled.end is not None:
                    answer.end = message.sampled.end
                    if self._request.stream:
                        frames.append(self._wire.ended(answer))
        return b"".join(frames)

    def _check_time(self, waited: float) -> None:
        if self._patience.queue and not self._exchange.begun and waited >= self._patience.queue:
            raise Refusal(
                503,
                f"no slot became free in {self._patience.queue:g} seconds; try again later",
                headers={"retry-after": "1"},
            )
        if self._patience.request and waited >= self._patience.request:
            limit = self._patience.request
            raise Refusal(504, f"the request took longer than {limit:g} seconds; ask for less")

    async def _start(self, client: Client, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._status = status
        await client.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _refuse(self, client: Client, refusal: Refusal) -> None:
        self._word = refusal.type
        more = [(name.encode("ascii"), value.encode("ascii")) for name, value in refusal.headers.items()]
        await self._answer(client, refusal.status, refusal.body(), more)

    async def _answer(
        self, client: Client, status: int, value: object, more: list[tuple[bytes, bytes]]
    ) -> None:
        body = encode_json(value)
        length = (b"content-length", str(len(body)).encode("ascii"))
        await self._start(client, status, [*JSON_HEADERS, length, *more])
        await client.send({"type": "http.response.body", "body": body})


def ends(answers: Sequence[Answer]) -> str:
    """The reasons for which the generations of a request ended."""
    return "+".join(sorted({answer.end.reason for answer in answers if answer.end is not None}))
