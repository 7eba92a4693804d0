"""An answer to exercise 13."""

import json


def differences(header: str, expected: dict[str, object]) -> list[str]:
    """The names of all expected values that a header does not hold, in alphabetical order."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"a key stands twice among {[key for key, _ in pairs]}")
        return dict(pairs)

    found = json.loads(header, object_pairs_hook=once)
    return sorted(name for name in expected if name not in found or found[name] != expected[name])
