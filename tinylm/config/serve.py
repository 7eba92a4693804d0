"""How a model is served."""

from __future__ import annotations

from dataclasses import dataclass

from tinylm.config.checked import Checked, Device, booleans, choices, integers, is_text, numbers, option
from tinylm.config.generate import MOST_GUESSED


@dataclass(frozen=True)
class ServeConfig(Checked):
    """How a model is served. A time of 0 seconds means no limit, except for `grace_seconds`."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 lets other machines in")
    port: int = option(8080, "port to listen on; 0 takes a free one")
    slots: int = option(4, "generations that run side by side")
    fast: bool = option(
        False, "more tokens/s with many requests; an id may then depend on what runs beside it"
    )
    graphs: bool = option(
        False, "with --fast, on CUDA: compile the steps and record them as CUDA graphs, which takes a while"
    )
    speculate: int = option(
        0, "most tokens guessed and read at once with the last; changes no id, only the speed; 0: none"
    )
    queue: int = option(64, "generations that may wait for a slot; beyond it the answer is 429")
    alias: str | None = option(None, "name of the model in answers (default: that of the checkpoint)")
    seed: int = option(-1, "seed of requests that name none; -1 draws one for each")
    device: Device = option("auto", "where the model computes")
    api_key: str | None = option(
        None, "key that clients must send (Authorization: Bearer KEY), but for / and /health"
    )
    api_key_file: str | None = option(None, "take the key from this file, out of sight of other users' ps")
    cors_origin: tuple[str, ...] = option((), "web origins whose pages may read answers; * for any")
    allow_host: tuple[str, ...] = option(
        (), "names under which a server on loopback may be called besides localhost"
    )
    max_body: int = option(1 << 20, "bytes in the body of a request; beyond it the answer is 413")
    max_prompt: int = option(0, "tokens in a prompt; 0: what the window holds")
    queue_seconds: float = option(60.0, "how long a request may wait for a slot")
    request_seconds: float = option(600.0, "how long a request may take in all")
    stall_seconds: float = option(30.0, "how long a client may read nothing before its request is cancelled")
    ping_seconds: float = option(15.0, "a comment is sent to a stream that was idle for so long")
    grace_seconds: float = option(3.0, "how long requests may go on when the server is stopped")
    quiet: bool = option(False, "no line per request")

    def problems(self) -> list[str]:
        found = integers(self, ("port", "queue", "max_prompt"), 0)
        found += integers(self, ("slots",), 1, 1024)
        found += integers(self, ("max_body",), 1)
        found += integers(self, ("speculate",), 0, MOST_GUESSED)
        found += integers(self, ("seed",), -1, 2**32 - 2)
        seconds = ("queue_seconds", "request_seconds", "stall_seconds", "ping_seconds", "grace_seconds")
        found += numbers(self, seconds, 0.0)
        found += booleans(self, ("fast", "graphs", "quiet"))
        found += choices(self, device=("auto", "cpu", "cuda", "mps"))
        if self.graphs is True and self.fast is False:
            found.append("graphs is given without fast, whose last bits they have; expected both or none")
        if isinstance(self.port, int) and self.port > 65_535:
            found.append(f"port is {self.port}, expected at most 65535")
        if not is_text(self.host):
            found.append(f"host is {self.host!r}, expected an address such as 127.0.0.1")
        for name in ("alias", "api_key", "api_key_file"):
            value = getattr(self, name)
            if value is not None and not is_text(value):
                found.append(f"{name} is {value!r}, expected text that is not empty")
        for name in ("cors_origin", "allow_host"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(map(is_text, value)):
                found.append(f"{name} is {value!r}, expected texts that are not empty")
        if self.api_key is not None and self.api_key_file is not None:
            found.append("api_key and api_key_file are both given, expected one of them")
        return found
