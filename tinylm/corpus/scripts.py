"""A census of text: characters by script and by length in UTF-8."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

AT_ONCE = 1 << 15
SPARSE = 8  # a text is sparse if fewer than one in so many bytes tell it from ASCII,
WORTH = 1 << 12  # and it is worth treating as such from this size on

# Blocks of code points, coarse where a block mixes scripts. Fixed here, not asked from `unicodedata`, whose
# answers change with Python's version: the same texts make the same corpus.json everywhere. `common` is
# digits, punctuation, spaces, controls and combining marks; `symbols` is emoji, arrows, mathematics.
BLOCKS = """
common 0-40 5B-60 7B-A9 AB-B9 BB-BF D7 F7 2B0-36F 2000-206F 2070-209F 20D0-20FF 2E00-2E7F 3000-3004 3008-3020
common 302A-303F FE10-FE1F FE20-FE6F FF01-FF20 FF3B-FF40 FF5B-FF65 FFE0-FFFF
Latin 41-5A 61-7A AA BA C0-D6 D8-F6 F8-2AF 1D00-1DBF 1E00-1EFF 2C60-2C7F A720-A7FF AB30-AB6F FB00-FB06
Latin FF21-FF3A FF41-FF5A
Greek 370-3FF 1F00-1FFF
Cyrillic 400-52F 1C80-1C8F 2DE0-2DFF A640-A69F
Armenian 531-58F
Hebrew 590-5FF FB1D-FB4F
Arabic 600-6FF 750-77F 870-8FF FB50-FDFF FE70-FEFE
Devanagari 900-97F A8E0-A8FF
Bengali 980-9FF
Gurmukhi A00-A7F
Gujarati A80-AFF
Tamil B80-BFF
Telugu C00-C7F
Kannada C80-CFF
Malayalam D00-D7F
Sinhala D80-DFF
Thai E00-E7F
Lao E80-EFF
Tibetan F00-FFF
Myanmar 1000-109F
Georgian 10A0-10FF 1C90-1CBF 2D00-2D2F
Ethiopic 1200-139F 2D80-2DDF
Khmer 1780-17FF
Hangul 1100-11FF 3130-318F A960-A97F AC00-D7FF FFA0-FFDC
Kana 3040-30FF 31F0-31FF FF66-FF9F 1B000-1B16F
Han 2E80-2FDF 3005-3007 3021-3029 3400-4DBF 4E00-9FFF F900-FAFF 20000-3FFFF
symbols 20A0-20CF 2100-2BFF FE00-FE0F 1D400-1D7FF 1F000-1FBFF
"""
SCRIPTS = (*dict.fromkeys(line.split()[0] for line in BLOCKS.split("\n") if line), "other")


class Census:
    """Counts int64 [script, 4]: characters by script and by UTF-8 length less one.

    ASCII is counted as bytes, which is several times faster; so is the ASCII of texts that hold little else.
    """

    def __init__(self) -> None:
        self._counts: Counts = np.zeros((len(SCRIPTS), 4), dtype=np.int64)
        self._codes = np.empty(AT_ONCE, dtype=np.intp)
        self._classes = np.empty(AT_ONCE, dtype=np.uint8)
        self._ascii: list[bytes] = []
        self._ascii_size = 0
        self._text: list[str] = []
        self._text_size = 0

    def add(self, data: bytes, text: str | None) -> None:
        """Count whole characters: `data` is their UTF-8, `text` is None if all of them are ASCII."""
        if text is None:
            self._ascii.append(data)
            self._ascii_size += len(data)
            if self._ascii_size >= AT_ONCE:
                self._count_ascii()
            return
        if len(data) >= WORTH and (len(data) - len(text)) * SPARSE < len(data):
            values = np.frombuffer(data, np.uint8)
            others = values[values >= 0x80]
            self._add_ascii(values, len(values) - len(others))
            text = others.tobytes().decode("utf-8")
        self._text.append(text)
        self._text_size += len(text)
        if self._text_size >= AT_ONCE:
            self._count_text()

    def counts(self) -> Counts:
        """A copy of the counts so far."""
        self._count_ascii()
        self._count_text()
        return self._counts.copy()

    def restore(self, counts: Counts) -> None:
        """Go back to earlier counts."""
        self.counts()
        self._counts[...] = counts

    def _count_ascii(self) -> None:
        self._add_ascii(np.frombuffer(b"".join(self._ascii), np.uint8), self._ascii_size)
        self._ascii, self._ascii_size = [], 0

    def _add_ascii(self, values: npt.NDArray[np.uint8], size: int) -> None:
        letters = int(np.count_nonzero(((values | np.uint8(0x20)) - np.uint8(0x61)) < 26))
        self._counts[SCRIPTS.index("Latin"), 0] += letters
        self._counts[SCRIPTS.index("common"), 0] += size - letters

    def _count_text(self) -> None:
        text = "".join(self._text)
        for start in range(0, len(text), AT_ONCE):
            codes = np.frombuffer(text[start : start + AT_ONCE].encode("utf-32-le"), dtype="<u4")
            classes, indices = self._classes[: len(codes)], self._codes[: len(codes)]
            indices[...] = codes
            _classes().take(indices, out=classes, mode="clip")
            found = np.bincount(classes, minlength=self._counts.size)
            self._counts += found.reshape(self._counts.shape)
        self._text, self._text_size = [], 0


def by_script(counts: Counts) -> dict[str, int]:
    """UTF-8 bytes of each script that occurs, most first."""
    sizes = counts @ np.arange(1, 5)
    order = sorted(range(len(SCRIPTS)), key=lambda index: (-sizes[index], SCRIPTS[index]))
    return {SCRIPTS[index]: int(sizes[index]) for index in order if sizes[index]}


def script_of(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The index in SCRIPTS of each code point (int64, 0..0x10FFFF)."""
    return (_classes()[codes] >> np.uint8(2)).astype(np.int64)


@functools.cache
def _classes() -> npt.NDArray[np.uint8]:
    """Of each code point: script * 4 + UTF-8 length - 1."""
    scripts = np.full(0x110000, SCRIPTS.index("other"), dtype=np.uint8)
    for line in BLOCKS.split("\n"):
        name, *ranges = line.split() or [""]
        for block in ranges:
            first, _, last = block.partition("-")
            scripts[int(first, 16) : int(last or first, 16) + 1] = SCRIPTS.index(name)
    lengths = np.zeros(0x110000, dtype=np.uint8)
    for least in (0x80, 0x800, 0x10000):
        lengths[least:] += 1
    return scripts * np.uint8(4) + lengths
