"""Check of exercise 09."""

from types import ModuleType

from tinylm.walkthrough.exercises import expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `parameters`."""
    for name, shape, right in (
        ("nano", (4, 128, 352, 4, 4, 32), 870_016),
        ("a small one with shared keys", (2, 64, 160, 4, 2, 16), 0),
    ):
        layers, width, mlp, heads, kv_heads, head_size = shape
        pair = width * head_size
        if name != "nano":
            right = 2 * 257 * width + width
            right += layers * (2 * pair * (heads + kv_heads) + 3 * width * mlp + 2 * width + 2 * head_size)
        expect(
            f"parameters{shape}, {name}",
            answer.parameters(*shape),
            right,
            {
                "the head is missing: it is a matrix of its own here": right - 257 * width,
                "keys and values are counted with all heads: they have kv_heads": (
                    right + layers * 2 * pair * (heads - kv_heads)
                ),
                "SwiGLU has three matrices, not two": right - layers * width * mlp,
                "the gain of the last norm is missing": right - width,
                "the gains of the norms of queries and keys are missing": right - layers * 2 * head_size,
                "all gains are missing": right - layers * (2 * width + 2 * head_size) - width,
                "embedding and head are counted once per layer": right + (layers - 1) * 2 * 257 * width,
                "the output matrix of attention is missing": right - layers * pair * heads,
            },
        )
