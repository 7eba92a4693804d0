"""Exercise of stage 13: what must match before weights may be trusted."""

import json


def differences(header: str, expected: dict[str, object]) -> list[str]:
    """The names of all expected values that a header does not hold, in alphabetical order.

    `header` is a JSON object. A value that is missing differs; what the header holds beyond the expected is
    no matter. Raise ValueError where the header names a key twice, at any depth: two programs may read such
    a file differently. (`json.loads` takes an `object_pairs_hook`, which sees the pairs of each object.)
    """
    raise NotImplementedError
