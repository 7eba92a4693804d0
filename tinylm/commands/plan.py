"""tinylm plan: what a bigger run will need."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, fields
from tinylm.flags import flag_value, flags
from tinylm.interrupts import LastingStream

if TYPE_CHECKING:
    from tinylm.plan import Prediction

Rows = list[tuple[str, str, str]]


def plan(given: Arguments) -> int:
    from tinylm.plan import advice, predict

    values = fields(given)
    values["model"] = options.ModelConfig(**fields(given.model))
    found = predict(options.PlanConfig(**values))
    if found.config.json:
        print(json.dumps(found.to_dict(), indent=1))
        return 0
    for title, headers, rows in tables(found):
        show(title, headers, rows)
    for sentence in advice(found) or ["it fits, and no part of a step stands out"]:
        print(f"advice      {sentence}")
    print(f"start       {found.command()}")
    return 0


def tables(found: Prediction) -> list[tuple[str, tuple[str, str, str], Rows]]:
    """The tables of a plan: title, headers, rows."""
    from tinylm.plan.words import amount, duration, scaled

    model, at, kept, sent, time = found.model, found.hardware, found.memory, found.traffic, found.time
    ranks = found.config.gpus
    count = options.parameter_count(model)
    shared = "" if ranks == 1 else f"about 1/{ranks} of them" if found.config.shard else "all of them"
    whole = found.config.shard and found.micro_batches > 1
    share = "as given" if found.config.utilisation is not None else "measured" if at.measured else "assumed"
    way = "compiled" if found.compiled else "eager"
    run: Rows = [
        ("model", f"{count:,}", f"parameters: {model.layers} layers x {model.width}, window {model.window}"),
        (
            "devices",
            f"{ranks:,}",
            f"{at.name}, {found.precision}, {way}",
        ),
        ("rate", scaled(at.flops * at.utilisation, "FLOP/s"), f"{at.utilisation:.0%} of its peak, {share}"),
        ("tokens", f"{found.tokens:,}", f"{found.tokens / count:,.1f} for each parameter"),
        ("steps", f"{found.steps:,}", f"of {found.batch_rows:,} rows, {found.tokens_per_step:,} tokens"),
        (
            "rows of a rank",
            f"{found.rows:,}",
            f"{found.micro_batches} x {found.micro_rows} at once",
        ),
    ]
    stays: Rows = [
        ("parameters", amount(kept.parameters), shared),
        ("gradients", amount(kept.gradients), "whole until they are sent" if whole else shared),
        ("optimizer", amount(kept.optimizer), "momenta and averages"),
        ("activations", amount(kept.activations), f"of {found.micro_rows * model.window:,} tokens at once"),
        ("logits", amount(kept.logits), "with their gradients"),
    ]
    stays += [("weights in bfloat16", amount(kept.casts), "autocast's copies")] if kept.casts else []
    stays += [("gathered layers", amount(kept.buffers), "two at a time")] if kept.buffers else []
    stays += [
        ("backward pass", amount(kept.backward), "all of these"),
        ("Muon's products" if found.config.muon else "update", amount(kept.orthogonalisation), "after it"),
        ("most", amount(kept.peak), f"{'fits' if found.fits else 'DOES NOT FIT'} {amount(found.limit)}, a "
         f"device's {amount(at.memory)} less a tenth"),
    ]  # fmt: skip
    step: Rows = [
        ("compute", duration(time.compute), "forward and backward"),
        ("optimizer", duration(time.optimizer), f"{time.optimizer / time.total:.0%} of the step"),
    ]
    if ranks > 1:
        link = scaled(at.rate(ranks), "B/s")
        step += [
            ("sent by a rank", amount(sent.sent), f"gradients {amount(sent.gradients)}, "
             f"parameters {amount(sent.parameters)}, Muon {amount(sent.muon)}"),
            ("communication", duration(time.communication), f"at {link}, {duration(at.latency)} a message"),
            ("of it hidden", duration(time.hidden), "beside the passes"),
            ("efficiency", f"{found.efficiency:.0%}", f"of {ranks} times one device"),
        ]  # fmt: skip
    hours = found.seconds * ranks / 3600
    step += [
        ("step", duration(time.total), f"{found.tokens_per_second:,.0f} tokens/s"),
        (
            "run",
            duration(found.seconds),
            f"{hours:,.1f} device hours; evaluations besides",
        ),
    ]
    held = found.disk
    kept_rows: Rows = [
        ("checkpoint", amount(held.checkpoint), f"model {held.model:,} bytes, training {held.training:,}"),
        (
            "run",
            amount(held.run),
            f"newest {found.config.keep}, the best; {amount(held.most)} while it saves",
        ),
        ("corpus", amount(held.corpus), "if every token is read once"),
    ]
    return [
        ("run", ("what", "value", ""), run),
        ("memory of a rank", ("what", "bytes", ""), stays),
        ("time of a step", ("what", "value", ""), step),
        ("disk", ("what", "bytes", ""), kept_rows),
    ]


def show(title: str, headers: Sequence[str], rows: Rows) -> None:
    """Print a table, by rich where it is installed."""
    if importlib.util.find_spec("rich") is None:
        from tinylm.walkthrough import render_table

        print(f"{title}\n{render_table(headers, rows)}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, header in enumerate(headers):
        table.add_column(header, justify="right" if number == 1 else "left")
    for row in rows:
        table.add_row(*row)
    out: Any = LastingStream(sys.stdout)
    Console(file=out, markup=False, highlight=False, emoji=False, soft_wrap=True).print(table)


def plan_flags(words: list[str]) -> type:
    """The flags: those of the model have the preset's defaults."""
    base = options.PlanConfig()
    model = options.preset(flag_value(words, "--preset") or base.preset)
    return flags(options.PlanConfig, default=options.PlanConfig(model=model))


PLAN = Command(
    "Plan a bigger run: memory of a rank, time, traffic, disk, and what to change where it does not fit.",
    plan_flags,
    plan,
)
