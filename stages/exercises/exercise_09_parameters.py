"""Exercise of stage 09: count the parameters before anything is built."""


def parameters(
    layers: int, width: int, mlp_width: int, heads: int, kv_heads: int, head_size: int, vocabulary: int = 257
) -> int:
    """The parameters of a Transformer as in stage 09.

    Once: an embedding and a head of vocabulary x width each, and the gain of the last norm, `width`.
    In each layer: matrices for queries and output (width x heads x head_size each), for keys and values
    (width x kv_heads x head_size each), three of width x mlp_width for SwiGLU; gains of `width` for the two
    norms before attention and MLP, and of `head_size` for the norms of queries and of keys.
    """
    raise NotImplementedError
