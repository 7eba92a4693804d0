"""An answer to exercise 09."""


def parameters(
    layers: int, width: int, mlp_width: int, heads: int, kv_heads: int, head_size: int, vocabulary: int = 257
) -> int:
    """The parameters of a Transformer as in stage 09."""
    attention = 2 * width * head_size * (heads + kv_heads)
    layer = attention + 3 * width * mlp_width + 2 * width + 2 * head_size
    return 2 * vocabulary * width + layers * layer + width
