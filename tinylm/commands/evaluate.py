"""tinylm evaluate: measure, compare, compress and restore."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, fields
from tinylm.errors import ConfigError
from tinylm.flags import flags

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinylm.corpus import Corpus, Split
    from tinylm.language_model import LanguageModel


HOW = ("protocol", "stride", "rows", "limit")
"""The options that say how targets are scored."""


def evaluate(given: Arguments) -> int:
    from tinylm.language_model import load
    from tinylm.progress import console

    values = fields(given)
    path, data = values.pop("checkpoint"), values.pop("data")
    config = options.EvaluateConfig(**values).check()
    refuse_before_work(config, data)
    model = load(path, config.device)
    against = load(config.against, config.device) if config.against is not None else None
    corpus = None if data is None else opened(data, config)
    shown: list[RenderableType] = []
    result: dict[str, Any] = {"checkpoint": path}
    if config.code is not None or config.decode is not None:
        if config.code is not None:
            assert corpus is not None
            result |= code(model, corpus.validation, config, shown)
        if config.decode is not None:
            result |= decode(model, None if corpus is None else corpus.validation, config, shown)
    else:
        assert corpus is not None
        result |= measure(model, against, corpus, path, config, shown)
    if config.json:
        print(json.dumps(result, indent=1))
        return 0
    for part in shown:
        console(stderr=False).print(part)
    return 0


def refuse_before_work(config: options.EvaluateConfig, data: str | None) -> None:
    """Raise ConfigError for what would only be noticed after minutes of work."""
    problems = []
    if data is None and (config.restore is None or config.code is not None):
        problems.append(
            "DATA is missing: name a corpus or a source of text (only --decode FILE --restore OUT needs none)"
        )
    if data is None and config.field is not None:
        problems.append("field is an option of DATA, which is missing")
    for name in ("code", "restore"):
        place = getattr(config, name)
        if place is not None and Path(place).exists():
            problems.append(f"{name} {place}: exists already; choose another place, or remove it first")
        elif place is not None and not Path(place).parent.is_dir():
            problems.append(f"{name} {place}: its folder does not exist; make it first")
    if config.pictures is not None and Path(config.pictures).is_file():
        problems.append(f"pictures {config.pictures}: is a file; choose a folder")
    if problems:
        raise ConfigError("; ".join(problems))


def opened(data: str, config: options.EvaluateConfig) -> Corpus:
    """The corpus that DATA means, built first where it is a source of text."""
    from tinylm.data import corpus_for
    from tinylm.progress import BuildProgress

    with BuildProgress() as progress:
        return corpus_for(data, options.CorpusConfig(field=config.field), progress)


def measure(
    model: LanguageModel,
    against: LanguageModel | None,
    corpus: Corpus,
    path: str,
    config: options.EvaluateConfig,
    shown: list[RenderableType],
) -> dict[str, Any]:
    """Score the held-out text, against another model and with the ladder where asked."""
    from tinylm.baselines import ladder
    from tinylm.progress import CountProgress, comparison_tables, evaluation_table, ladder_table

    how: dict[str, Any] = {name: getattr(config, name) for name in HOW}
    result: dict[str, Any]
    with CountProgress("scoring", "tokens") as progress:
        if against is None:
            evaluation = model.evaluate(corpus, progress=progress, **how)
            result = evaluation.to_dict()
            shown.append(evaluation_table(evaluation))
        else:
            assert config.against is not None
            compared = model.compare(against, corpus, progress=progress, **how)
            evaluation = compared.model
            other = {"checkpoint": config.against, **compared.against.to_dict()}
            result = {**evaluation.to_dict(), "against": other, "difference": compared.difference.to_dict()}
            shown.extend(comparison_tables(compared, (path, config.against)))
    rungs = ladder(corpus.train, corpus.validation) if config.ladder else []
    result["ladder"] = [rung.to_dict() for rung in rungs]
    if rungs:
        shown.append(ladder_table(rungs, evaluation))
    if config.pictures is not None:
        result["pictures"] = draw(model, corpus.validation, config, shown)
    return result


def draw(
    model: LanguageModel, split: Split, config: options.EvaluateConfig, shown: list[RenderableType]
) -> list[str]:
    """Score once more, for pictures of where the bits go; a picture holds no more than sums of them."""
    from tinylm.bit_pictures import draw_pictures
    from tinylm.evaluate import score
    from tinylm.progress import CountProgress

    assert config.pictures is not None
    how: dict[str, Any] = {name: getattr(config, name) for name in HOW}
    with CountProgress("drawing", "tokens") as progress:
        scores = score(model.transformer, split, progress=progress, **how)
        paths = draw_pictures(model.transformer, split, config.pictures, scores, shown.append)
    shown.extend(f"drawn: {path.as_posix()}" for path in paths)
    return [path.as_posix() for path in paths]


def code(
    model: LanguageModel, split: Split, config: options.EvaluateConfig, shown: list[RenderableType]
) -> dict[str, Any]:
    """Compress the split, or its first tokens, and set the file's size beside the reported bits."""
    from tinylm.coder import encode_split
    from tinylm.progress import CountProgress, coding_table

    assert config.code is not None
    part = first_tokens(split, config.limit)
    with CountProgress("scoring", "tokens") as progress:
        evaluation = model.evaluate(part, rows=config.rows, progress=progress)
    if len(part.stream) < len(split.stream):
        words = f"disjoint, the first {evaluation.tokens:,} of {len(split.stream) - 1:,} tokens"
        evaluation = dataclasses.replace(evaluation, protocol=words)
    with CountProgress("coding", "tokens") as progress:
        coded = encode_split(model.transformer, split, config.code, limit=config.limit, progress=progress)
    shown.append(coding_table(evaluation, coded))
    facts = {"file": config.code, "reported_bits": evaluation.bits_per_byte * evaluation.bytes}
    names = ("payload_bytes", "file_bytes", "targets", "bits")
    facts |= {name: getattr(coded, name) for name in names}
    return {**evaluation.to_dict(), "coded": facts}


def decode(
    model: LanguageModel, split: Split | None, config: options.EvaluateConfig, shown: list[RenderableType]
) -> dict[str, Any]:
    """Restore a coded file, compare it with the split, write its documents."""
    from tinylm.coder import decode_file
    from tinylm.commands.restoring import documents_of, refuse_difference, write_documents
    from tinylm.progress import CountProgress

    assert config.decode is not None
    with CountProgress("decoding", "tokens") as progress:
        stream = decode_file(model.transformer, config.decode, progress=progress)
    documents = documents_of(stream)
    size = sum(map(len, documents))
    count = "1 document" if len(documents) == 1 else f"{len(documents):,} documents"
    words = f"{config.decode}: decoded {count}, {size:,} bytes"
    if split is not None:
        refuse_difference(stream, split, config.decode)
        which = "all" if len(stream) == len(split.stream) else "the first"
        words += f"; {which} {size:,} of the held-out text's {split.bytes:,} bytes are equal"
    if config.restore is not None:
        write_documents(documents, config.restore)
        words += f"; written to {config.restore}"
    shown.append(words)
    facts = {"file": config.decode, "bytes": size, "documents": len(documents), "tokens": len(stream) - 1}
    equal = None if split is None else True
    return {"decoded": {**facts, "equal": equal, "restored": config.restore}}


def first_tokens(split: Split, limit: int | None) -> Split:
    """A split of the first `limit` targets: windows of the disjoint protocol begin where they did."""
    if limit is None or limit >= len(split.stream) - 1:
        return split
    return dataclasses.replace(
        split, stream=split.stream[: limit + 1], starts=split.starts[split.starts <= limit]
    )


EVALUATE = Command(
    "Measure a checkpoint in bits per byte, beside what counting and compressors reach.",
    lambda words: flags(
        options.EvaluateConfig,
        positional={
            "checkpoint": (str, "a run folder, a step folder or a model file"),
            "data": (
                str | None,
                "a corpus folder, or any source of text: its held-out part is measured",
            ),
        },
    ),
    evaluate,
)
