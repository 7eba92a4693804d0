"""What `tinylm corpus show` says about a corpus."""

from __future__ import annotations

from typing import Any

from tinylm.corpus.opened import SPLITS, stream_file
from tinylm.corpus.split import Corpus
from tinylm.sources.document import counted, shown
from tinylm.tokenizer import debug_decode

SHOWN_DOCUMENTS = 3
SHOWN_BYTES = 80
LIMITS = ("documents", "characters", "bytes", "tokens")


def describe(corpus: Corpus) -> str:
    """Counts, scripts by share of bytes, first documents, sources, limits and digests, as lines of text."""
    info = corpus.info
    total, parts = info["total"], [info["splits"][name] for name in SPLITS]
    size = total["bytes"]
    lines = [corpus.path.as_posix(), f"  {'':<20}{'all':>15}{'train':>15}{'held out':>15}"]
    for name in ("documents", "characters", "bytes", "tokens"):
        numbers = (total[name], *(part[name] for part in parts))
        lines.append(f"  {name:<20}" + "".join(f"{number:>15,}" for number in numbers))
    scripts = sorted(info["scripts"].items(), key=lambda item: (-item[1], item[0]))
    facts = {
        "bytes per character": f"{size / total['characters']:.3f}",
        "scripts by bytes": ", ".join(f"{name} {_percent(count, size)}" for name, count in scripts),
        "held out": f"{HELD_OUT[info['held_out']]}: {_percent(parts[1]['bytes'], size)} of the bytes, "
        f"{100 * info['config']['validation']:g} % were asked for",
        "sources": "; ".join(_source(entry) for entry in info["sources"]),
        "left out": ", ".join(_left_out(info)) or "nothing",
        "limits": ", ".join(
            f"{total[name]:,} of {info['config'][f'max_{name}']:,} {name}" for name in LIMITS
        ),
    }
    if info["truncated"]:
        facts["truncated"] = (
            f"stopped at the last whole document under {info['truncated']}; more text followed"
        )
    facts["digest"] = corpus.digest
    facts |= {stream_file(name): info["files"][stream_file(name)]["sha256"] for name in SPLITS}
    lines += [f"  {name:<20}{text}" for name, text in facts.items()]
    lines += ["  first documents", *(f"    {text}" for text in _first_documents(corpus))]
    return "\n".join(lines)


HELD_OUT = {
    "documents": "whole documents, by their SHA-256",
    "tail": "the tail of the largest document (too few documents to hold out whole ones)",
}


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if 1000 * part >= whole else "<0.1 %"


def _source(entry: dict[str, Any]) -> str:
    counts = ", ".join(
        counted(entry[name], name) for name in ("files", "documents", "bytes") if name in entry
    )
    return (
        f"{entry['place']} ({entry['kind']}: {counts}{'' if entry['complete'] else ', not read to its end'})"
    )


def _left_out(info: dict[str, Any]) -> list[str]:
    counts = {name.replace("_", " "): count for name, count in info["left_out"].items()}
    counts |= {f"{suffix} files": count for suffix, count in info["skipped"].items()}
    return [counted(count, name) for name, count in counts.items() if count]


def _first_documents(corpus: Corpus) -> list[str]:
    """The first documents to train on, as the stream has them, one line each."""
    stream = corpus.train.stream
    texts: list[str] = []
    for start in corpus.train.starts[:SHOWN_DOCUMENTS]:
        length = len(corpus.train.document(len(texts)))
        end = int(start) + min(length, SHOWN_BYTES)
        while end < start + length and int(stream[end]) & 0xC0 == 0x80:
            end -= 1
        more = "…" if end < start + length else debug_decode(stream[end : end + 1])
        texts.append(shown(debug_decode(stream[int(start) - 1 : end])) + more)
    return texts
