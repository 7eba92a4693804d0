"""How sources become documents."""

from __future__ import annotations

from dataclasses import dataclass

from tinylm.config.checked import Checked, booleans, integers, is_number, is_text, option


@dataclass(frozen=True)
class CorpusConfig(Checked):
    """How sources become documents, and how much of them is too much."""

    field: str | None = option(
        None,
        "field of a JSON line that holds the text (default: text); with it, standard input is JSON Lines",
    )
    split_on: str | None = option(
        None, "a line that separates documents inside one file; the line itself is dropped"
    )
    validation: float = option(0.1, "share of the text that is held out, by documents")
    max_documents: int = option(5_000_000, "limit: documents")
    max_characters: int = option(2_000_000_000, "limit: characters, before encoding")
    max_bytes: int = option(4_000_000_000, "limit: bytes, after encoding")
    max_tokens: int = option(4_000_000_000, "limit: tokens of the stream, boundaries included")
    truncate: bool = option(False, "at a limit, stop at the last whole document instead of failing")

    def problems(self) -> list[str]:
        found = integers(self, ("max_documents", "max_characters", "max_bytes", "max_tokens"), 1)
        found += booleans(self, ("truncate",))
        if not is_number(self.validation) or not 0 < self.validation <= 0.5:
            found.append(f"validation is {self.validation!r}, expected a share above 0 and up to 0.5")
        if self.field is not None and not is_text(self.field):
            found.append(f"field is {self.field!r}, expected the name of a field such as text")
        if self.split_on is not None and (not is_text(self.split_on) or set(self.split_on) & {"\n", "\r"}):
            found.append(f"split_on is {self.split_on!r}, expected one line that is not empty")
        return found
