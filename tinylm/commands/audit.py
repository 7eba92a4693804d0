"""tinylm audit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, fields
from tinylm.commands.serve import read_key
from tinylm.errors import ConfigError
from tinylm.flags import flags


def audit(given: Arguments) -> int:
    from tinylm.files import readable_json, write_atomic
    from tinylm.serve.audit import audit
    from tinylm.serve.audit.report import Showing, show

    values = fields(given)
    url = values.pop("url")
    config = options.AuditConfig(**values).check()
    if config.api_key_file is not None:
        key = read_key(Path(config.api_key_file))
        config = dataclasses.replace(config, api_key=key, api_key_file=None).check()
    if config.json is not None:
        place = Path(config.json)
        if place.exists():
            raise ConfigError(f"json {place}: exists already; choose another place, or remove it first")
        if not place.parent.is_dir():
            raise ConfigError(f"json {place}: its folder does not exist; make it first")
    with Showing() as showing:
        result = audit(url, config, showing)
    if config.json is not None:
        write_atomic(config.json, readable_json(result.to_dict()))
    show(result)
    return result.exit_code


AUDIT = Command(
    "Ask a server for text that is hard to stream, and count what arrives. Any llama-server-compatible "
    "endpoint, any vocabulary; exit code 1 where something is lost.",
    lambda words: flags(
        options.AuditConfig, positional={"url": (str, "address of the server, such as http://127.0.0.1:8080")}
    ),
    audit,
)
