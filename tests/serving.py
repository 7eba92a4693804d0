"""A real server on a real socket in this process, for as long as a test lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinylm.config import ServeConfig
from tinylm.generate import Engine


@contextmanager
def serving(model: Any, **options: Any) -> Iterator[str]:
    """Serve a model; gives the URL. Options are those of ServeConfig."""
    from tinylm.serve.app import Served, create_app
    from tinylm.serve.running import Listener, listen, quiet_logs, url

    config = ServeConfig(**{"port": 0, "slots": 2, "grace_seconds": 0.0, **options}).check()
    quiet_logs()
    ready, told = threading.Event(), []
    served = Served("scripted", model.config, 0, 0, "0" * 64, None, "0")
    app = create_app(Engine(model, config.slots), served, config, config.api_key, told.append)
    with listen(config) as sock:
        listener = Listener(app, config, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(listener.serve([sock])))
        thread.start()
        try:
            if not ready.wait(20):
                raise RuntimeError("the server does not start")
            yield url(config, sock)
        finally:
            listener.should_exit = True
            thread.join(20)
            if traces := [line for line in told if "Traceback" in line]:
                raise RuntimeError(traces[0])
