"""The recorded cases of streams: in the shared folder, not part of the project."""

from __future__ import annotations

import functools
import json
import unittest
from typing import Any

from tests.stage_support import SHARED

CASES = SHARED / "cases" / "streaming.json"


@functools.cache
def recorded_cases() -> list[dict[str, Any]]:
    """The cases of the shared folder; skips where there is none."""
    if not CASES.is_file():
        raise unittest.SkipTest(f"{CASES} is not there: the recorded cases are not part of the project")
    found = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    assert isinstance(found, list) and len(found) >= 30
    return found


def case_limit(case: dict[str, Any]) -> int:
    return 512 if case["n_predict"] is None else int(case["n_predict"])
