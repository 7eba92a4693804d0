"""An answer to exercise 05."""


def bind(shape: tuple[int, ...], letters: str, sizes: dict[str, int]) -> dict[str, int]:
    """Check a shape against letters such as "B T"; returns the size of every letter."""
    names = letters.split()
    if len(names) != len(shape):
        raise ValueError(f"expected the axes {letters}, found {len(shape)}")
    bound = dict(sizes)
    for name, size in zip(names, shape, strict=True):
        if bound.setdefault(name, size) != size:
            raise ValueError(f"{name} is {size}, expected {bound[name]}")
    return bound
