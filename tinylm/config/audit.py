"""How a server is audited."""

from __future__ import annotations

from dataclasses import dataclass

from tinylm.config.checked import Checked, integers, is_text, numbers, option, seed


@dataclass(frozen=True)
class AuditConfig(Checked):
    """What is asked of a server, and where the record goes."""

    chain: int = option(4, "links of the chain: what was received is fed back as ids, and counted; 0: none")
    prompts: tuple[str, ...] = option(
        (), "prompt of the free runs; give it again for more (default: English, Korean, emoji, none)"
    )
    tokens: int = option(48, "limit of tokens of a free run")
    seed: int = option(1, "seed of the runs that are drawn; the first link of the chain has it too")
    json: str | None = option(None, "write the whole record to this file, which must not exist")
    api_key: str | None = option(None, "key that the server wants (Authorization: Bearer); never recorded")
    api_key_file: str | None = option(None, "take the key from this file, out of sight of other users' ps")
    timeout: float = option(60.0, "seconds for which the server may be silent; ten times as many in all")

    def problems(self) -> list[str]:
        found = integers(self, ("chain",), 0, 10_000) + integers(self, ("tokens",), 1, 1 << 20) + seed(self)
        if (
            not found and self.seed + self.chain >= 2**32 - 1
        ):  # llama-server's seeds; the last one means random
            found.append(
                f"seed is {self.seed}, expected below 2**32 - 1 - chain: a seed on the wire has 32 bits"
            )
        found += numbers(self, ("timeout",), 0.0, above=True)
        if not isinstance(self.prompts, tuple) or not all(isinstance(one, str) for one in self.prompts):
            found.append(f"prompts is {self.prompts!r}, expected texts")
        elif any(0xD800 <= ord(character) < 0xE000 for one in self.prompts for character in one):
            found.append("prompts hold bytes that are not UTF-8, expected text")
        for name in ("json", "api_key_file"):
            value = getattr(self, name)
            if value is not None and not is_text(value):
                found.append(f"{name} is {value!r}, expected a path")
        if self.api_key is not None and self.api_key_file is not None:
            found.append("api_key and api_key_file are both given, expected one of them")
        if self.api_key is not None and not (is_text(self.api_key) and self.api_key.isascii()):
            found.append("api_key is empty or not ASCII, expected the key as the server knows it")
        elif self.api_key is not None and not self.api_key.isprintable():
            found.append("api_key holds a control character, expected the key as the server knows it")
        return found
