"""Exercise of stage 05: a shape as a contract."""


def bind(shape: tuple[int, ...], letters: str, sizes: dict[str, int]) -> dict[str, int]:
    """Check a shape against letters such as "B T"; returns the size of every letter.

    `sizes` holds the letters that are known already. A letter that is not known takes the size found, and the
    same letter twice means equal sizes: bind((3, 3), "T T", {}) is {"T": 3}. Raise ValueError for another
    number of axes and for another size, and let its message name the letter. `sizes` stays as it is.
    """
    raise NotImplementedError
