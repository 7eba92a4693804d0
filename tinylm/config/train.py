"""One training run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tinylm import files
from tinylm.config.checked import (
    MOST,
    Checked,
    Device,
    booleans,
    choices,
    fine,
    integers,
    is_text,
    numbers,
    option,
    seed,
    shares,
)
from tinylm.config.model import ModelConfig, choice_of_model, preset
from tinylm.errors import ConfigError

Precision = Literal["auto", "float32", "bfloat16", "float64"]

RESUMABLE = ("stop_after", "save_every", "keep", "sample_tokens", "tensorboard", "rank_timeout")
"""Options that a resume may change: they touch neither the weights nor a row of metrics.jsonl."""

INEXACT = ("device", "threads", "compile", "micro_rows", "shard")
"""Options that a resume may change too, but then sums are rounded in another order: it is recorded in the
run that it is no longer bit for bit what it would have been."""

YOUNGER = {"shard": False, "rank_timeout": 300.0, "ngram_rate": 0.02, "ngram_dropout": 0.3}
"""Options that runs of the first versions do not record, with what they did."""


@dataclass(frozen=True)
class TrainConfig(Checked):
    """One training run: a run is a function of this, the corpus and the seed."""

    data: str = dataclasses.field(
        metadata={"help": "a corpus folder, or any source of text (a corpus is built from it first)"}
    )
    out: str | None = option(None, "folder of the run (default: checkpoints/NAME-PRESET); must not exist")
    preset: str = option(
        "nano", "model preset: nano, micro, mini, small, base or fast; the model's own flags override it"
    )
    model: ModelConfig | None = option(None, "the model; None stands for the preset's")
    steps: int | None = option(None, "optimizer steps")
    minutes: float | None = option(
        None, "train about this long instead of a number of steps (default: 3 minutes)"
    )
    stop_after: int | None = option(
        None, "stop and save after this step, as if interrupted; --resume goes on"
    )
    batch_rows: int = option(8, "rows per optimizer step")
    micro_rows: int | None = option(None, "rows per forward pass; None: as many as memory takes")
    seed: int = option(0, "seed of weights, row order and dropout")
    muon: bool = option(True, "Muon for the matrices of the layers; off: AdamW for everything")
    muon_rate: float = option(0.02, "peak learning rate of Muon, for the layers' matrices")
    adam_rate: float = option(0.006, "peak learning rate of AdamW, for embedding, head and gains")
    ngram_rate: float = option(0.02, "peak learning rate of RMSprop, for embeddings of n-grams (--ngrams)")
    muon_momentum: float = option(0.95, "momentum of Muon")
    adam_beta1: float = option(0.8, "decay of AdamW's first moment")
    adam_beta2: float = option(0.95, "decay of AdamW's second moment")
    weight_decay: float = option(0.0, "decoupled weight decay of the layers' matrices, in units of the rate")
    warmup: float = option(0.02, "share of the steps in which the rate rises")
    decay: float = option(0.6, "share of the steps, at the end, in which the rate falls to zero")
    clip: float | None = option(None, "clip the norm of all gradients to this; None: never")
    dropout: float = option(0.0, "dropout of the residual branches")
    ngram_dropout: float = option(
        0.3, "share of the n-grams that training leaves out at random (with --ngrams)"
    )
    evaluate_every: int | None = option(None, "steps between evaluations; None: eight in a run")
    evaluate_tokens: int = option(
        16_384, "held-out tokens that evaluations during the run read; the last one reads all"
    )
    save_every: int | None = option(None, "steps between checkpoints; None: at each evaluation")
    keep: int = option(2, "newest checkpoints to keep; the best one by held-out text is kept besides")
    sample_tokens: int = option(120, "length of the sample shown at each evaluation; 0: none")
    device: Device = option("auto", "auto takes CUDA, then MPS, then the CPU")
    precision: Precision = option("auto", "auto: bfloat16 autocast on CUDA where it is native, else float32")
    compile: Literal["auto", "yes", "no"] = option("auto", "torch.compile; auto: where it pays")
    threads: int | None = option(None, "CPU threads; None: as torch chooses")
    deterministic: bool = option(
        False, "on CUDA, use only operations that repeat bit for bit (slower); a CPU does so anyway"
    )
    tensorboard: bool = option(False, "also write TensorBoard events into the run folder (extra: track)")
    shard: bool = option(
        False, "under torchrun: each rank holds its share of weights and optimizer state (FSDP2)"
    )
    rank_timeout: float = option(
        300.0, "under torchrun: seconds that a rank waits for the others, to start or in a step, at most"
    )
    init: str | None = option(None, "start from the weights of this checkpoint instead of random ones")

    @classmethod
    def from_dict(cls, values: object, where: str) -> Self:
        """As for every configuration; runs that are older than the options in YOUNGER mean their defaults."""
        return super().from_dict({**YOUNGER, **values} if isinstance(values, Mapping) else values, where)

    def resolved_model(self) -> ModelConfig:
        """The model to train: the given one, or the preset's."""
        return self.model if self.model is not None else preset(self.preset)

    def problems(self) -> list[str]:
        found = choice_of_model(self.preset, self.model)
        if not is_text(self.data):
            found.append(f"data is {self.data!r}, expected a corpus or a source of text")
        for name in ("out", "init"):
            if getattr(self, name) is not None and not is_text(getattr(self, name)):
                found.append(f"{name} is {getattr(self, name)!r}, expected a path")
        if self.steps is not None and self.minutes is not None:
            found.append(f"steps is {self.steps} and minutes is {self.minutes}, expected one of them")
        found += integers(self, ("batch_rows",), 1, MOST) + integers(self, ("evaluate_tokens", "keep"), 1)
        found += integers(self, ("sample_tokens",), 0)
        found += seed(self)
        for name in ("steps", "stop_after", "micro_rows", "evaluate_every", "save_every", "threads"):
            if getattr(self, name) is not None:
                found += integers(self, (name,), 1, 1024 if name == "threads" else None)
        for name in ("minutes", "clip"):
            if getattr(self, name) is not None:
                found += numbers(self, (name,), 0.0, above=True)
        if not found and self.minutes is not None and self.minutes > 1_000_000:
            found.append(f"minutes is {self.minutes:g}, expected at most 1000000")
        found += numbers(self, ("rank_timeout",), 0.0, above=True)
        if not found and self.rank_timeout > 1_000_000:
            found.append(f"rank_timeout is {self.rank_timeout:g}, expected at most 1000000")
        found += numbers(self, ("muon_rate", "adam_rate", "ngram_rate", "weight_decay"), 0.0)
        found += shares(
            self, ("muon_momentum", "adam_beta1", "adam_beta2", "dropout", "ngram_dropout", "warmup", "decay")
        )
        found += choices(
            self,
            device=("auto", "cpu", "cuda", "mps"),
            precision=("auto", "float32", "bfloat16", "float64"),
            compile=("auto", "yes", "no"),
        )
        found += booleans(self, ("muon", "tensorboard", "deterministic", "shard"))
        if fine(found, "warmup", "decay") and self.warmup + self.decay > 1:
            found.append(f"warmup + decay is {self.warmup + self.decay:g}, expected at most 1")
        if fine(found, "batch_rows", "micro_rows") and self.batch_rows % (self.micro_rows or 1):
            found.append(
                f"micro_rows is {self.micro_rows}, expected a divisor of batch_rows ({self.batch_rows})"
            )
        return found

    def rows_of_a_rank(self, ranks: int) -> int:
        """Rows of each step that each of so many ranks takes; ConfigError where they cannot be shared out."""
        each, left = divmod(self.batch_rows, ranks)
        if left:
            raise ConfigError(
                f"batch_rows is {self.batch_rows}, expected a multiple of the {ranks} ranks, which share "
                f"each batch; use --batch-rows {(each + 1) * ranks}, or another --nproc-per-node"
            )
        return each

    def rows_per_pass(self, ranks: int) -> int:
        """Rows of each forward pass of a rank: `micro_rows`, or the next smaller divisor of its rows."""
        each = self.rows_of_a_rank(ranks)
        wanted = min(self.micro_rows or each, each)
        return next(rows for rows in range(wanted, 0, -1) if each % rows == 0)

    def check_ranks(self, ranks: int) -> None:
        """Raise ConfigError where so many ranks cannot share the rows of a step as is asked."""
        each = self.rows_of_a_rank(ranks)
        if self.micro_rows is not None and each % self.micro_rows:
            raise ConfigError(
                f"micro_rows is {self.micro_rows}, expected a divisor of the {each} rows that each of "
                f"{ranks} ranks takes of batch_rows ({self.batch_rows})"
            )


def read_run_config(path: str) -> TrainConfig:
    """The configuration of a run.json, for another run: its place is not taken over."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror}; expected the run.json of a run") from None
    content = files.parse_json(data, path, ConfigError)
    if not isinstance(content, dict) or "config" not in content:
        raise ConfigError(f"config {path}: holds no 'config'; expected the run.json of a run")
    return dataclasses.replace(TrainConfig.from_dict(content["config"], path), out=None, stop_after=None)
