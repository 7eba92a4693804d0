"""A Hugging Face folder of Qwen3's shape, read and computed in NumPy from the published description alone.

A second opinion on an export where no other program is installed: it shares no code with the model, which
it would repeat the mistakes of. Slow, in float64, and whole rows only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tinylm.interop.huggingface_tokenizer import byte_characters

Floats = npt.NDArray[np.float64]


class ByHand:
    """The model of a folder. The options are mistakes, for showing what a wrong reader computes.

    `neighbours`: RoPE turns the pairs (2k, 2k + 1) of a head instead of (k, k + K/2). `epsilon`: that of
    RMSNorm, in place of the one in config.json. `spelled`: every entry is looked for in a text, also the
    one that no byte has.
    """

    def __init__(
        self,
        folder: Path,
        *,
        neighbours: bool = False,
        epsilon: float | None = None,
        spelled: bool = False,
    ) -> None:
        self.config = json.loads((folder / "config.json").read_bytes())
        self.weights = read_safetensors(folder / "model.safetensors")
        self.entries = json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
        self.epsilon = self.config["rms_norm_eps"] if epsilon is None else epsilon
        self.special = [entry for entry in self.entries if len(entry) > 1] if spelled else []
        half, size = self.config["head_dim"] // 2, self.config["head_dim"]
        self.pairs = (slice(0, half), slice(half, size))
        if neighbours:
            self.pairs = (slice(0, size, 2), slice(1, size, 2))

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text: one per byte, looked up in tokenizer.json under the byte's character."""
        for entry in self.special:
            before, found, after = text.partition(entry)
            if found:
                return [*self.tokenize(before), self.entries[entry], *self.tokenize(after)]
        characters = byte_characters()
        return [self.entries[characters[byte]] for byte in text.encode("utf-8")]

    def log_probabilities(self, ids: Sequence[int]) -> Floats:
        """Log-probabilities (natural, float64 [T, 257]) of the token after each of `ids`."""
        x_TD = self.weights["model.embed_tokens.weight"][list(ids)]
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}."
            x_TD = x_TD + self._attention(self._norm(x_TD, f"{layer}input_layernorm"), f"{layer}self_attn.")
            x_TD = x_TD + self._mlp(self._norm(x_TD, f"{layer}post_attention_layernorm"), f"{layer}mlp.")
        tied = self.config["tie_word_embeddings"]
        head_VD = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return log_softmax(self._norm(x_TD, "model.norm") @ head_VD.T)

    def _norm(self, x: Floats, name: str) -> Floats:
        scale: Floats = np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.epsilon)
        return x / scale * self.weights[f"{name}.weight"]

    def _linear(self, x_TD: Floats, name: str) -> Floats:
        y: Floats = x_TD @ self.weights[f"{name}.weight"].T
        return y

    def _attention(self, x_TD: Floats, name: str) -> Floats:
        T, size = len(x_TD), self.config["head_dim"]
        q, k, v = (self._linear(x_TD, f"{name}{part}_proj").reshape(T, -1, size) for part in "qkv")
        q, k = self._turned(self._norm(q, f"{name}q_norm")), self._turned(self._norm(k, f"{name}k_norm"))
        shared = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        future_TT = np.triu(np.full((T, T), -np.inf), 1)
        seen_HTT = np.exp(log_softmax(np.einsum("thk,shk->hts", q, k) / size**0.5 + future_TT))
        y_TD: Floats = np.einsum("hts,shk->thk", seen_HTT, v).reshape(T, -1)
        return self._linear(y_TD, f"{name}o_proj")

    def _turned(self, x_THK: Floats) -> Floats:
        """RoPE: each pair turned by its position's angle, the pairs of a head ever more slowly."""
        size, (first, second) = self.config["head_dim"], self.pairs
        rates_K = self.config["rope_theta"] ** -(np.arange(0, size, 2) / size)
        angles_T1K = np.arange(len(x_THK))[:, None, None] * rates_K
        cos, sin = np.cos(angles_T1K), np.sin(angles_T1K)
        y_THK = np.empty_like(x_THK)
        y_THK[..., first] = x_THK[..., first] * cos - x_THK[..., second] * sin
        y_THK[..., second] = x_THK[..., second] * cos + x_THK[..., first] * sin
        return y_THK

    def _mlp(self, x_TD: Floats, name: str) -> Floats:
        gate = self._linear(x_TD, f"{name}gate_proj")
        silu: Floats = gate / (1 + np.exp(-gate))
        return self._linear(silu * self._linear(x_TD, f"{name}up_proj"), f"{name}down_proj")


def read_safetensors(path: Path) -> dict[str, Floats]:
    """A safetensors file by its definition: a length of 8 bytes, a JSON header, then the numbers."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            kind = {"F32": "<f4", "F64": "<f8"}[entry["dtype"]]
            numbers = np.frombuffer(data, kind, (last - first) // int(kind[2]), start + first)
            tensors[name] = numbers.reshape(entry["shape"]).astype(np.float64)
    return tensors


def log_softmax(logits: Floats) -> Floats:
    """Natural log-probabilities over the last axis of logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
