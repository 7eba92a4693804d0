"""The Transformer. Qwen3-shaped, so that the same weights mean the same elsewhere.

Pre-norm RMSNorm, rotary positions (half-split), RMSNorm on queries and keys, grouped-query attention,
SwiGLU, no biases. Tensors carry the Hugging Face Qwen3 names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.attention import Seen, attend, check_segments, dense_mask, seen_within
from tinylm.cache import Cache, SlotRows, Slots
from tinylm.config import ModelConfig
from tinylm.config import flops_per_token as flops_per_token
from tinylm.config import parameter_count as parameter_count
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import ContractError, ShapeError
from tinylm.ngrams import NgramEmbedding, rows_of
from tinylm.shapes import check_shape, state_problems


class Attention(nn.Module):
    """Causal grouped-query attention with normalised queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = config.heads, config.kv_heads, config.head_size
        self.q_proj = nn.Linear(config.width, config.heads * config.head_size, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_size, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_size, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_size, config.width, bias=False)
        self.q_norm = nn.RMSNorm(config.head_size, config.norm_eps)
        self.k_norm = nn.RMSNorm(config.head_size, config.norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor],
        layer: int,
        cache: Cache | SlotRows | None,
        seen: Seen,
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BHTK = self.q_norm(self.q_proj(x_BTD).view(B, T, self.heads, -1)).transpose(1, 2)
        k_BHTK = self.k_norm(self.k_proj(x_BTD).view(B, T, self.kv_heads, -1)).transpose(1, 2)
        v_BHTK = self.v_proj(x_BTD).view(B, T, self.kv_heads, -1).transpose(1, 2)
        q_BHTK, k_BHTK = rotate(q_BHTK, *rope), rotate(k_BHTK, *rope)
        if cache is not None:
            k_BHTK, v_BHTK = cache.append(layer, k_BHTK, v_BHTK)
        y_BHTK = attend(q_BHTK, k_BHTK, v_BHTK, seen)
        out_BTD: Tensor = self.o_proj(y_BHTK.transpose(1, 2).reshape(B, T, -1))
        return out_BTD


class MLP(nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out_BTD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return out_BTD


class Layer(nn.Module):
    """One layer: attention, then the MLP, each on a normalised input and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.width, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self,
        x_BTD: Tensor,
        rope: tuple[Tensor, Tensor],
        layer: int,
        cache: Cache | SlotRows | None,
        seen: Seen,
        dropout: float,
    ) -> Tensor:
        y_BTD = self.self_attn(self.input_layernorm(x_BTD), rope, layer, cache, seen)
        x_BTD = x_BTD + (F.dropout(y_BTD, dropout) if dropout else y_BTD)
        y_BTD = self.mlp(self.post_attention_layernorm(x_BTD))
        return x_BTD + (F.dropout(y_BTD, dropout) if dropout else y_BTD)


class Decoder(nn.Module):
    """Embeddings, layers and the last norm, under the prefix `model.` of the tensor names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # Without a weight, an embedding draws one; on the meta device that imports torch's compiler: seconds.
        empty_VD = torch.empty(VOCABULARY_SIZE, config.width)
        self.embed_tokens = nn.Embedding(VOCABULARY_SIZE, config.width, _weight=empty_VD)
        self.ngrams = NgramEmbedding(config) if config.ngrams else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)


class Transformer(nn.Module):
    """A decoder-only language model over 257 tokens. The weights depend on `config` and `seed` only."""

    def __init__(self, config: ModelConfig, seed: int | None = 0) -> None:
        """Without a seed the weights stay on the meta device: they have shapes, and no memory yet."""
        super().__init__()
        self.config = config.check()
        with torch.device("meta"):
            self.model = Decoder(config)
            self.lm_head = None if config.tied else nn.Linear(config.width, VOCABULARY_SIZE, bias=False)
        if seed is not None:
            allocate(self)
        self.register_buffer("cos_TK", None, persistent=False)
        self.register_buffer("sin_TK", None, persistent=False)
        self.cos_TK, self.sin_TK = rotary_tables(config)
        if seed is not None:
            self.initialize(seed, Tensor.copy_)

    @torch.no_grad()
    def initialize(self, seed: int, put: Callable[[Tensor, Tensor], object]) -> None:
        """Draw the weights in float32, one whole tensor at a time, and put(place, drawn) each.

        Matrices are uniform with standard deviation 1/sqrt(fan-in), projections back into the residual
        stream, the untied head and n-grams zero, gains one. So the first loss is ln 257.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            drawn = torch.empty(parameter.shape)
            if drawn.ndim == 1:
                drawn.fill_(1.0)
            elif name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight", "ngrams.weight")):
                drawn.zero_()
            elif "embed_tokens" in name:
                # Tied, the same matrix is the head: a normalised row times itself must stay small.
                deviation = 1 / self.config.width if self.config.tied else 1.0
                drawn.normal_(0.0, deviation, generator=generator)
            else:
                bound = math.sqrt(3.0 / drawn.shape[1])
                drawn.uniform_(-bound, bound, generator=generator)
            put(parameter, drawn)
            del drawn

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed_tokens.weight.device

    def new_cache(self, rows: int = 1) -> Cache:
        """An empty cache for `rows` rows, with room for one window, where the weights are."""
        weight = self.model.embed_tokens.weight
        return Cache(self.config, rows, weight.device, weight.dtype)

    def new_slots(self, slots: int) -> Slots:
        """Empty slots, each with room for one window, where the weights are."""
        weight = self.model.embed_tokens.weight
        return Slots(self.config, slots, weight.device, weight.dtype)

    def forward(
        self,
        ids_BT: Tensor,
        cache: Cache | SlotRows | None = None,
        dropout: float = 0.0,
        segments: Seen = None,
        ngrams_BTN: Tensor | None = None,
        ngram_dropout: float = 0.0,
    ) -> Tensor:
        """Logits [B, T, 257] of the token after each position.

        `ids_BT`: int64 [B, T]. With a cache the tokens follow those read before; B must be its rows, and T
        must fit. A `Cache` is advanced; with rows of slots each row goes on from its own position. With
        `segments` (integers [B, T] as in a batch, or what `attention.seen_within` made of them) a position
        sees its own piece of the row alone: rotary positions need no reset for that, as they tell
        distances only. `ngrams_BTN`: what `ngram_rows` gave, where it was worked out before.
        Raises ShapeError and ContractError.
        """
        if not torch.compiler.is_compiling():
            self._check(ids_BT, cache)
        if self.config.ngrams and ngrams_BTN is None:
            ngrams_BTN = self.ngram_rows(ids_BT, segments, cache)
        seen = self._seen(ids_BT, segments, cache)
        T = ids_BT.shape[1]
        if isinstance(cache, SlotRows):
            positions_BT, seen = cache.begin(T)
            rope = (self.cos_TK[positions_BT][:, None], self.sin_TK[positions_BT][:, None])
        else:
            start = 0 if cache is None else cache.position
            rope = (self.cos_TK[start : start + T], self.sin_TK[start : start + T])
        x_BTD = self.embed(ids_BT, ngrams_BTN, ngram_dropout)
        for index, layer in enumerate(self.model.layers):
            x_BTD = layer(x_BTD, rope, index, cache, seen, dropout)
        if isinstance(cache, Cache):
            cache.position += T
        x_BTD = self.model.norm(x_BTD)
        if self.lm_head is None:
            return F.linear(x_BTD, self.model.embed_tokens.weight)
        logits_BTV: Tensor = self.lm_head(x_BTD)
        return logits_BTV

    def embed(self, ids_BT: Tensor, ngrams_BTN: Tensor | None, ngram_dropout: float = 0.0) -> Tensor:
        """What the first layer reads [B, T, D]: each token's embedding and those of its n-grams."""
        x_BTD: Tensor = self.model.embed_tokens(ids_BT)
        return x_BTD if self.model.ngrams is None else x_BTD + self.model.ngrams(ngrams_BTN, ngram_dropout)

    def ngram_rows(
        self, ids_BT: Tensor, segments: Seen = None, cache: Cache | SlotRows | None = None
    ) -> Tensor | None:
        """Rows of the n-grams that end at each position (int64 [B, T, ngrams - 1]); None if it has none.

        `segments` as in a batch. With a cache, n-grams reach back into what it has read.
        """
        if not self.config.ngrams:
            return None
        if segments is not None and (not isinstance(segments, Tensor) or segments.dtype == torch.bool):
            raise ShapeError(
                "segments: n-grams need the numbers of a batch; give its ngram_rows beside a mask"
            )
        T = ids_BT.shape[1]
        return rows_of(ids_BT if cache is None else cache.remember(ids_BT), T, self.config, segments)

    def _check(self, ids_BT: Tensor, cache: Cache | SlotRows | None) -> None:
        rows, start = {}, 0
        if isinstance(cache, Cache):
            rows, start = {"B": cache.keys_LBHTK.shape[1]}, cache.position
        elif cache is not None:
            rows, start = {"B": len(cache.positions)}, max(cache.positions)
        sizes = check_shape(ids_BT, "B T", name="ids_BT", kind="integer", **rows)
        if start + sizes["T"] > self.config.window:
            raise ShapeError(
                f"ids_BT: {start} + {sizes['T']} tokens do not fit the window of {self.config.window}; "
                "give at most a window, or generate(), which re-reads the last half"
            )
        if ids_BT.numel():
            lowest, highest = int(ids_BT.min()), int(ids_BT.max())
            if not 0 <= lowest <= highest <= DOC_BOUNDARY:
                raise ContractError(
                    f"ids_BT: holds ids from {lowest} to {highest}, expected 0..{DOC_BOUNDARY}"
                )

    def _seen(self, ids_BT: Tensor, segments: Seen, cache: Cache | SlotRows | None) -> Seen:
        """Segments as attention takes them."""
        if segments is not None and cache is not None:
            raise ShapeError("segments: a cache holds one document a row; give one of the two")
        if not isinstance(segments, Tensor) or segments.dtype == torch.bool:
            return segments
        if torch.compiler.is_compiling():
            return dense_mask(segments)
        B, T = ids_BT.shape
        check_shape(segments, "B T", name="segments", kind="integer", B=B, T=T)
        check_segments(segments)
        return seen_within(segments.to(ids_BT.device), dtype=self.model.embed_tokens.weight.dtype)

    def load_state(self, tensors: dict[str, Tensor], where: str) -> None:
        """Copy weights in, strictly by name, shape and dtype; a ShapeError names their source, `where`."""
        wanted = dict(self.named_parameters())
        problems = state_problems(tensors, wanted)
        if problems:
            raise ShapeError(f"{where}: {'; '.join(problems)}")
        with torch.no_grad():
            for name, parameter in wanted.items():
                parameter.copy_(tensors[name])


def allocate(module: nn.Module) -> None:
    """Give every parameter of a module on the meta device memory on the CPU; its content is undefined.

    As Module.to_empty, which imports torch's symbolic shapes for it: most of a second.
    """
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
            setattr(part, name, nn.Parameter(empty))


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [window, head_size] of RoPE (Su et al., 2021), half-split as in Hugging Face."""
    pairs = torch.arange(0, config.head_size, 2, dtype=torch.float64)
    frequencies = config.rope_theta ** -(pairs / config.head_size)
    angles = torch.arange(config.window, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos().to(torch.float32), angles.sin().to(torch.float32)


def rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Turn each pair (k, k + K/2) of a head by its position's angle.

    The tables are [T, K], or [B, 1, T, K] for rows that stand at positions of their own. Raises ShapeError.
    """
    if not torch.compiler.is_compiling():
        _check_rotary(x_BHTK, cos_TK, sin_TK)
    first, second = x_BHTK.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x_BHTK * cos_TK.to(x_BHTK.dtype) + turned * sin_TK.to(x_BHTK.dtype)


def _check_rotary(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> None:
    """The contract of `rotate`. Each layer of each step passes here: what is right is seen at a glance."""
    shape, table = x_BHTK.shape, cos_TK.shape
    floats = x_BHTK.is_floating_point() and cos_TK.is_floating_point() and sin_TK.is_floating_point()
    if len(shape) == 4 and table == sin_TK.shape and floats and not shape[3] % 2:
        rows, T, K = shape[0], shape[2], shape[3]
        if table == (T, K) or table == (rows, 1, T, K):
            return
    B, _, T, K = check_shape(x_BHTK, "B H T K", name="x_BHTK", kind="float").values()
    if K % 2:
        raise ShapeError(f"x_BHTK: axis 3 (K) is {K}, expected an even number, as it is turned in pairs")
    pattern = "B 1 T K" if cos_TK.ndim == 4 else "T K"
    for name, found in (("cos_TK", cos_TK), ("sin_TK", sin_TK)):
        check_shape(found, pattern, name=name, kind="float", B=B, T=T, K=K)


def describe(config: ModelConfig) -> dict[str, Any]:
    """Numbers that a run prints before it starts."""
    return {
        "parameters": parameter_count(config),
        "training FLOPs per byte": 3 * flops_per_token(config, config.window),
    }
