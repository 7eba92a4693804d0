"""The tensors of a model, by formula: names, shapes, what a rank holds of them, which ones Muon takes."""

from __future__ import annotations

import math
from collections import Counter

from tinylm.config import ModelConfig
from tinylm.contract import VOCABULARY_SIZE

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of each parameter under its name, in the order of `Transformer.named_parameters()`."""
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (config.width,),
        "self_attn.q_proj.weight": (queries, config.width),
        "self_attn.k_proj.weight": (keys, config.width),
        "self_attn.v_proj.weight": (keys, config.width),
        "self_attn.o_proj.weight": (config.width, queries),
        "self_attn.q_norm.weight": (config.head_size,),
        "self_attn.k_norm.weight": (config.head_size,),
        "post_attention_layernorm.weight": (config.width,),
        "mlp.gate_proj.weight": (config.mlp_width, config.width),
        "mlp.up_proj.weight": (config.mlp_width, config.width),
        "mlp.down_proj.weight": (config.width, config.mlp_width),
    }
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (VOCABULARY_SIZE, config.width)}
    if config.ngrams:
        shapes["model.ngrams.weight"] = ((config.ngrams - 1) * config.ngram_rows, config.width)
    for number in range(config.layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (config.width,)
    if not config.tied:
        shapes["lm_head.weight"] = (VOCABULARY_SIZE, config.width)
    return shapes


def muon_shapes(config: ModelConfig, muon: bool = True) -> dict[str, Shape]:
    """Those of the tensors that Muon updates: the matrices of the layers."""
    shapes = tensor_shapes(config).items()
    return {name: shape for name, shape in shapes if muon and len(shape) == 2 and ".layers." in name}


def held(shape: Shape, ranks: int) -> int:
    """Elements of a tensor on the rank that holds most of it: rows are dealt out in equal pieces (FSDP2)."""
    return -(-shape[0] // ranks) * math.prod(shape[1:])


def muon_groups(shapes: dict[str, Shape]) -> Counter[tuple[int, int]]:
    """How many matrices there are of each (short side, long side): those are orthogonalised together."""
    return Counter((min(shape), max(shape)) for shape in shapes.values())


def muon_flops(shapes: dict[str, Shape]) -> float:
    """Floating-point operations of one Muon step: five Newton-Schulz steps of three products each.

    For m x n, m <= n: x xT and the last product are 2 m^2 n each, the square of the m x m product 2 m^3.
    """
    return sum(
        count * 5 * (4.0 * short**2 * long + 2.0 * short**3)
        for (short, long), count in muon_groups(shapes).items()
    )
