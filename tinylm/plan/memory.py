"""Bytes on the rank that holds most: what stays, what a micro-batch needs, what the optimizer needs."""

from __future__ import annotations

from dataclasses import dataclass

from tinylm.config import ModelConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.plan.tensors import Shape, held, muon_groups, muon_shapes, tensor_shapes

RESERVE = 0.1
"""Share of a device's memory left for its driver, the allocator's gaps and the network's buffers."""

BUCKET = 25 * 2**20
"""Bytes of gradients that DDP sends at once (`bucket_cap_mb`, torch's default)."""


@dataclass(frozen=True)
class Saved:
    """Bytes that a layer keeps of each token for the backward pass: for each unit of the width, of all query
    heads, of all key/value heads, and of the MLP's width.

    Counted from the tensors that autograd saves (tests/test_plan.py counts them again). The normalisation's
    scales and attention's sums over keys (float32, one a head or a norm) come besides.
    """

    width: int
    queries: int
    keys: int
    mlp: int


SAVED = {
    ("float32", False): Saved(24, 16, 16, 16),
    ("float32", True): Saved(16, 12, 12, 12),
    ("float64", False): Saved(48, 32, 32, 32),
    ("float64", True): Saved(32, 24, 24, 24),
    ("bfloat16", False): Saved(26, 12, 12, 8),
    ("bfloat16", True): Saved(12, 6, 6, 6),
}
"""By precision, and whether the step is compiled. Under autocast an eager step keeps a copy in bfloat16 for
each product besides the float32 values; a compiled one computes those again."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, the fullest one."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    casts: int
    """Weights in bfloat16, under autocast."""
    buffers: int
    """What is sent, or was gathered, beside the tensors themselves."""
    orthogonalisation: int
    """Muon's products, when no activation is there any more."""

    @property
    def states(self) -> int:
        """What stays from step to step."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def kept(self) -> int:
        """Weights and optimizer: what a checkpoint of all ranks keeps."""
        return self.parameters + self.optimizer

    @property
    def backward(self) -> int:
        """At the turn from the forward to the backward pass."""
        return self.states + self.activations + self.logits + self.casts + self.buffers

    @property
    def update(self) -> int:
        """In the optimizer's step."""
        return self.states + self.orthogonalisation

    @property
    def peak(self) -> int:
        return max(self.backward, self.update)


def memory(
    config: ModelConfig,
    ranks: int,
    rows: int,
    *,
    micro_batches: int = 1,
    shard: bool = False,
    muon: bool = True,
    precision: str = "float32",
    compiled: bool = False,
) -> Memory:
    """The memory of a rank that reads `rows` rows of a whole window at once, and so many of these in a step.

    Sharded gradients stay whole until the last micro-batch: they are sent once a step.
    """
    size = 8 if precision == "float64" else 4
    tokens = rows * config.window
    divided = ranks if shard else 1
    shapes, matrices = tensor_shapes(config), muon_shapes(config, muon)
    others = [shape for name, shape in shapes.items() if name not in matrices]
    whole = sum(held(shape, 1) for shape in shapes.values())
    mine = sum(held(shape, divided) for shape in shapes.values())
    states = sum(held(shape, divided) for shape in matrices.values())
    states += 2 * sum(held(shape, divided) for shape in others)
    # A step's logits, their logarithms and both gradients in float32 (float64), over 257 ids.
    logits = 3 * size * VOCABULARY_SIZE * tokens
    return Memory(
        parameters=size * mine,
        gradients=size * (mine if micro_batches == 1 else whole),
        optimizer=size * states,
        activations=tokens * activation_bytes(config, precision, compiled),
        logits=logits,
        casts=2 * matrix_elements(config) if precision == "bfloat16" else 0,
        buffers=size * gathered(config) if shard and ranks > 1 else 0,
        orthogonalisation=size * orthogonalisation(matrices, divided),
    )


def activation_bytes(config: ModelConfig, precision: str, compiled: bool) -> int:
    """Bytes of one token that wait for the backward pass, the logits apart."""
    kept = SAVED[precision, compiled]
    size = 8 if precision == "float64" else 4
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    layer = kept.width * config.width + kept.queries * queries + kept.keys * keys
    layer += kept.mlp * config.mlp_width + size * (2 * config.heads + config.kv_heads + 2)
    last = (2 if compiled else 3) * size * config.width + size
    return config.layers * layer + last + 16  # ids and targets, int64


def matrix_elements(config: ModelConfig) -> int:
    """Elements of the matrices that products use: the layers' and the head."""
    shapes = tensor_shapes(config)
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return sum(held(s, 1) for n, s in shapes.items() if (len(s) == 2 and ".layers." in n) or n == head)


def gathered(config: ModelConfig) -> int:
    """Elements that FSDP2 holds whole beside the shards: what belongs to no layer, and two layers (the one
    in use and the next) with the gradients of one of them."""
    shapes = tensor_shapes(config)
    layer = sum(held(s, 1) for n, s in shapes.items() if n.startswith("model.layers.0."))
    rest = sum(held(s, 1) for n, s in shapes.items() if ".layers." not in n)
    return 2 * rest + 3 * layer


def orthogonalisation(matrices: dict[str, Shape], divided: int) -> int:
    """Elements beside the states while Muon works on its largest group of N matrices, M x K.

    The updates, their stack, two iterates, and two M x M products of each. Divided, a rank works on its
    share of the group, and holds what it sends and what it was sent.
    """
    most = 0
    for (m, k), n in muon_groups(matrices).items():
        here = -(-n // divided)
        sent = 0 if divided == 1 else 2 * n * m * k // divided + 2 * here * m * k
        most = max(most, here * (4 * m * k + 2 * m * m) + sent)
    return most
