"""Clients of a server that read as they like: to the end, slowly, or until they have enough. asyncio only."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 120.0


@dataclass
class Told:
    """What a client was told. Times in seconds from the moment the request was sent."""

    status: int = 0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    final: dict[str, Any] | None = None
    problem: str = ""
    first: float = 0.0
    seconds: float = 0.0


async def ask(
    port: int, body: Mapping[str, Any], *, leave_after: int | None = None, pause: float = 0.0
) -> Told:
    """Send a request to /completion and read the answer.

    `leave_after`: close the connection after that many events, without a word. `pause`: seconds between
    reads of 512 bytes, into a small buffer of the kernel.
    """
    told, began = Told(), time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE):
            await _ask(told, port, body, leave_after, pause, began)
    except TimeoutError:
        told.problem = f"no end after {PATIENCE:.0f} s"
    except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
        told.problem = f"{type(error).__name__}: {error}"
    told.seconds = time.perf_counter() - began
    return told


async def _ask(
    told: Told, port: int, body: Mapping[str, Any], leave_after: int | None, pause: float, began: float
) -> None:
    sock = socket.socket()
    if pause:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2048 if pause else 65_536)
    try:
        data = json.dumps(body).encode("ascii")
        head = "POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode("ascii") + data)
        told.status = int((await reader.readuntil(b"\r\n")).split()[1])
        headers = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
        parts = _body(reader, "chunked" in headers, pause)
        if not body.get("stream") or told.status != 200:
            whole = json.loads(b"".join([part async for part in parts]))
            if told.status == 200:
                told.ids, told.text, told.final = whole["tokens"], whole["content"], whole
            else:
                told.problem = whole["error"]["message"]
            return
        rest, events = b"", 0
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n\n")
            for line in lines:
                if line.startswith(b":"):
                    continue
                _take(told, json.loads(line.removeprefix(b"data: ")), began)
                events += 1
                if events == leave_after:
                    return
        if told.final is None and not told.problem:
            told.problem = f"the stream broke off after {len(told.ids)} ids"
    finally:
        writer.transport.abort() if leave_after else writer.close()


def _take(told: Told, event: dict[str, Any], began: float) -> None:
    if "error" in event:
        told.problem = event["error"]["message"]
        return
    if told.final is not None:
        told.problem = "an event after the final one"
    told.first = told.first or time.perf_counter() - began
    told.ids += event["tokens"]
    told.text += event["content"]
    if event["stop"]:
        told.final = event


async def _body(reader: asyncio.StreamReader, chunked: bool, pause: float) -> AsyncIterator[bytes]:
    """The body as it comes; the end of a chunked one must be there."""
    while not chunked:
        part = await reader.read(65_536)
        if not part:
            return
        yield part
    while size := int(await reader.readuntil(b"\r\n"), 16):
        while size:
            part = await reader.read(min(size, 512) if pause else size)
            if not part:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(part)
            yield part
            if pause:
                await asyncio.sleep(pause)
        await reader.readexactly(2)
    await reader.readexactly(2)


async def get(port: int, path: str) -> Any:
    """What a GET answers, as JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode("ascii"))
        data = await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()
    return json.loads(data.partition(b"\r\n\r\n")[2])
