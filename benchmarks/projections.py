"""Would fused projections pay? One product for queries, keys and values, and one for gate and up.

    python benchmarks/projections.py [--rows 8] [--window 256] [--rounds 20] [--json FILE] [--short]

Forward and backward through the projections of one layer of nano and mini, as the model does it (five
products), with fused weights (two), and with the separate weights of the export shape laid together in each
call. The variants take turns; `times` is how much faster than five products.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import measuring
import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.config import PRESETS
from tinylm.devices import cpu_threads

VERSION = 1
WAYS = ("five products", "fused weights", "laid together in each call")


def work(preset: str, tokens: int, way: str) -> Callable[[], float]:
    """A call that goes forward and backward once and says its seconds."""
    config = PRESETS[preset]
    kinds = (config.heads, config.kv_heads, config.kv_heads)
    sizes = [heads * config.head_size for heads in kinds], [config.mlp_width] * 2
    draw = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> Tensor:
        return torch.randn(rows, config.width, generator=draw).requires_grad_()

    x_RD = drawn(tokens)
    separate = [[drawn(size) for size in group] for group in sizes]
    fused = [torch.cat(group).detach().requires_grad_() for group in separate]
    held = [x_RD, *fused, *separate[0], *separate[1]]

    def projected() -> list[Tensor]:
        if way == "five products":
            return [F.linear(x_RD, weight) for group in separate for weight in group]
        weights = fused if way == "fused weights" else [torch.cat(group) for group in separate]
        both = [torch.split(F.linear(x_RD, w), group, -1) for w, group in zip(weights, sizes, strict=True)]
        return [part for parts in both for part in parts]

    def once() -> None:
        for tensor in held:
            tensor.grad = None
        # Each part goes its own way from here on, as in the model: its gradient comes by itself.
        torch.autograd.backward([part.contiguous().square().sum() for part in projected()])

    return lambda: measuring.seconds_of(once)


def main() -> int:
    parser = measuring.parser(__doc__, "projections")
    parser.add_argument("--rows", type=measuring.positive, default=8)
    parser.add_argument("--window", type=measuring.positive, default=256)
    parser.add_argument("--rounds", type=measuring.positive, default=20)
    options = parser.parse_args()
    rounds, tokens = (1, 64) if options.short else (options.rounds, options.rows * options.window)
    settings = {"rows": options.rows, "window": options.window, "rounds": rounds}
    session = measuring.Session("projections", VERSION, options.threads, settings, options.short).begin()
    with cpu_threads(options.threads):
        for preset in ("nano", "mini"):
            variants = {way: work(preset, tokens, way) for way in WAYS}
            seconds = measuring.alternate(variants, rounds, warm_up=3)
            for way in WAYS:
                session.row(
                    preset=preset,
                    way=way,
                    milliseconds=round(1e3 * measuring.median(seconds[way]), 2),
                    times=round(measuring.ratio_of(seconds[WAYS[0]], seconds[way]), 3),
                )
    session.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
