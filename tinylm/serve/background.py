"""A server in a thread of this process, for a notebook, a test or a stage."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator

from tinylm import __version__, checkpoint
from tinylm.config import ServeConfig
from tinylm.errors import TinylmError
from tinylm.generate import Engine
from tinylm.model import Transformer, parameter_count


@contextlib.contextmanager
def serve_in_background(
    model: Transformer, config: ServeConfig | None = None, name: str = "model"
) -> Iterator[str]:
    """Serve a model on this machine as long as the context lasts; gives the URL.

    `config`: by default a free port. It computes in this process, whose other threads slow it down. Needs
    the extra `serve`. Raises ConfigError for a port that is taken, TinylmError if it does not start.
    """
    from tinylm.serve.app import Served, create_app
    from tinylm.serve.running import Listener, listen, quiet_logs, url

    config = (config or ServeConfig(port=0)).check()
    data = checkpoint.model_bytes(model)
    served = Served(
        name=config.alias or name,
        config=model.config,
        parameters=parameter_count(model.config),
        size=len(data),
        digest=hashlib.sha256(data).hexdigest(),
        step=None,
        version=__version__,
    )
    quiet_logs()
    started = threading.Event()
    app = create_app(Engine(model, config.slots), served, config, config.api_key)
    with listen(config) as sock:
        listener = Listener(app, config, started.set)
        thread = threading.Thread(target=lambda: asyncio.run(listener.serve([sock])), name="server")
        thread.start()
        try:
            if not started.wait(30):
                raise TinylmError("the server did not start in 30 seconds")
            yield url(config, sock)
        finally:
            listener.should_exit = True
            thread.join()
