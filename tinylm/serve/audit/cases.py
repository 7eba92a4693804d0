"""What the audit asks for: texts that are hard to stream, limits inside characters, stop strings.

A case is forced by a grammar with one sentence. Texts are forced on any vocabulary; ill-formed bytes
only where ids are bytes and the grammar can name ids. `limit` counts tokens, so a limit of 4 is inside
a character for bytes and elsewhere for other vocabularies; what is checked then holds for both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A forced generation: the bytes that are to be sampled, stop strings, and a limit of tokens."""

    name: str
    data: bytes
    stop: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def text(self) -> str | None:
        """The bytes as text, or None where they are ill-formed."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            return None


GREETING = "안녕하세요."
FACES = "😊📚😊"
FAMILY = "👨\u200d👩\u200d👧\u200d👦"


def case(name: str, data: str | bytes, *, stop: tuple[str, ...] = (), limit: int | None = None) -> Case:
    return Case(name, data.encode("utf-8") if isinstance(data, str) else data, stop, limit)


CASES = (
    case("ABCD", "ABCD"),
    case("ABCD limit 4", "ABCD", limit=4),
    case("ABCD limit 0", "ABCD", limit=0),
    case(GREETING, GREETING),
    case(f"{GREETING} limit 4", GREETING, limit=4),
    case(f"{GREETING} limit 5", GREETING, limit=5),
    case(FACES, FACES),
    case(f"{FACES} limit 1", FACES, limit=1),
    case(f"{FACES} limit 2", FACES, limit=2),
    case(f"{FACES} limit 3", FACES, limit=3),
    case(f"{FACES} limit 4", FACES, limit=4),
    case(f"{FACES} limit 5", FACES, limit=5),
    case(f"{FACES} limit 11", FACES, limit=11),
    case("é NFC", "\u00e9"),
    case("e+U+0301 NFD", "e\u0301"),
    case("family ZWJ", FAMILY),
    case("FF", b"\xff"),
    case("41 FF 42", b"A\xffB"),
    case("C0 AF", b"\xc0\xaf"),
    case("F0 9F 98 then the end", b"\xf0\x9f\x98"),
    case("F0 9F 98 41", b"\xf0\x9f\x98A"),
    case("F0 41 42 43", b"\xf0ABC"),
    case("C3 then the end", b"\xc3"),
    case("ED A0 80", b"\xed\xa0\x80"),
    case("80 (lone continuation)", b"\x80"),
    case("EF BF BD (a sampled U+FFFD)", "\ufffd"),
    case("BOM+hi", "\ufeffhi"),
    case("A NUL B", b"A\x00B"),
    case("a CR LF b", "a\r\nb"),
    case("U+2028", "\u2028"),
    case("a U+2028 b U+2029 c U+0085 d", "a\u2028b\u2029c\u0085d"),
    case("the end first", ""),
    case('"one STOP two" stop STOP', "one STOP two", stop=("STOP",)),
    case('"one ST" stop STOP', "one ST", stop=("STOP",)),
    case('"one ST" limit 6 stop STOP', "one ST", stop=("STOP",), limit=6),
    case('"one STOP" stops TOP, " STOP"', "one STOP", stop=("TOP", " STOP")),
    case("가나다 stop 나", "가나다", stop=("나",)),
    case("가나다 limit 5 stop 나", "가나다", stop=("나",), limit=5),
    case(f"{FACES} stop 📚", FACES, stop=("📚",)),
    case('stop "one" at start', "one two", stop=("one",)),
    case("data: [DONE] as text", "data: [DONE]\n\ndata: null\n\n"),
)

PROMPTS = ("Once upon a time", "안녕하세요", "😊📚", "")
"""Prompts of the free runs unless others are given; the empty one starts a document, where a server can."""

NO_SYMBOLS = r"root ::= [^\u2600-\u27BF\U0001F000-\U0001FAFF]*"
"""A grammar of any text without the symbols and emoji of U+2600-27BF and U+1F000-1FAFF."""


def literal(data: bytes) -> str:
    """The GBNF grammar whose only sentence is this text (UTF-8)."""
    return f'root ::= "{"".join(map(escaped, data.decode("utf-8")))}"'


def escaped(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if 32 <= code < 127:
        return character
    return f"\\x{code:02X}" if code < 128 else f"\\u{code:04X}" if code < 1 << 16 else f"\\U{code:08X}"


def ids_grammar(data: bytes) -> str:
    """The GBNF grammar whose only sentence is these ids, for a vocabulary whose ids 0..255 are the bytes."""
    return "root ::= " + (" ".join(f"<[{byte}]>" for byte in data) or '""')
