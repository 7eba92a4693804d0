"""tinylm serve."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, ended, fields
from tinylm.errors import ConfigError
from tinylm.flags import flags


def serve(given: Arguments) -> int:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)}: not installed; pip install {' '.join(missing)}")
    values = fields(given)
    path = values.pop("checkpoint")
    config = options.ServeConfig(**values).check()
    key = config.api_key if config.api_key_file is None else read_key(Path(config.api_key_file))

    import asyncio

    from tinylm.generate import Engine, why_not_compiled
    from tinylm.interrupts import LastingStream, stop_requests
    from tinylm.serve.app import create_app
    from tinylm.serve.loading import load_served
    from tinylm.serve.running import Listener, listen, quiet_logs, url

    sock = listen(config)
    out, error = LastingStream(sys.stdout), LastingStream(sys.stderr)

    def log(text: str) -> None:
        if not config.quiet or "Traceback" in text:
            print(time.strftime("%Y-%m-%dT%H:%M:%S"), text, file=error, flush=True)

    with sock:
        served, model, device = load_served(path, config)

        def ready() -> None:
            at = "" if served.step is None else f" at step {served.step}"
            fast = ", fast" if config.fast else ""
            model_is = f"window {served.config.window}, policy {served.config.policy}, on {device}{fast}"
            print(f"{url(config, sock)} serves {served.name}{at} ({model_is}); Ctrl-C stops it", file=out)
            out.flush()

        quiet_logs()
        if config.graphs and device != "cuda":
            raise ConfigError(f"graphs: the model is on {device}, expected cuda; leave --graphs out")
        graphed = "inductor" if config.graphs else ""
        engine = Engine(model, config.slots, fast=config.fast, graphed=graphed)
        if (reason := why_not_compiled()) is not None:
            log(f"note: slower, in PyTorch: {reason}")
        if config.speculate and engine.unspeculative:
            log(f"note: speculate is ignored: {engine.unspeculative}")
        app = create_app(engine, served, config, key, log)
        listener = Listener(app, config, ready)

        def heard(number: int) -> None:
            listener.should_exit = True

        with stop_requests(heard) as stop:
            asyncio.run(listener.serve([sock]))
    return ended(stop.signal)


def read_key(path: Path) -> str:
    """The key in a file. Raises ConfigError for a file without one."""
    key = path.read_text("utf-8").strip()
    if not key:
        raise ConfigError(f"{path}: is empty, expected the key that clients must send")
    return key


SERVE = Command(
    "Answer requests over HTTP, in llama-server's and OpenAI's formats, with a page to play on.",
    lambda words: flags(
        options.ServeConfig,
        positional={"checkpoint": (str, "a run folder, a step folder or a model file")},
    ),
    serve,
)
