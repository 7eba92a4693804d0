"""The fuzz tests of the suite with many more examples, and other ones each time.

python tests/slow/fuzz.py [--short]

A failing example is printed by hypothesis in its smallest form: it belongs into tests/test_fuzz.py as an
@example, so that it stays.
"""

from __future__ import annotations

import io
import json
import os
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection.proof import Proof, Row
from tinylm import files
from tinylm.tokenizer import Utf8Stream


def tests(case: object) -> Iterator[unittest.TestCase]:
    """All tests of a suite, one by one."""
    if isinstance(case, unittest.TestCase):
        yield case
    elif isinstance(case, unittest.TestSuite):
        for inner in case:
            yield from tests(inner)


def run(row: Row, case: unittest.TestCase) -> None:
    """Run one test with all its examples."""
    printed = io.StringIO()
    result = unittest.TextTestRunner(stream=printed, verbosity=0).run(case)
    failed = [said for _, said in (*result.failures, *result.errors)]
    if failed:
        print(failed[0], file=sys.stderr)
    row.count(case.id(), failed[0].strip().splitlines()[-1] if failed else None)


def careless_json(data: bytes | str, where: str, error: object = None) -> object:
    """A parser that takes the last of two equal keys."""
    return json.loads(data)


def main() -> int:
    proof = Proof("arbitrary bytes, ids and headers at every border (injected: tests of many examples)")
    os.environ["TINYLM_FUZZ"] = "2" if proof.short else "40"
    from tests import test_fuzz

    for case in tests(unittest.defaultTestLoader.loadTestsFromModule(test_fuzz)):
        run(proof.row(type(case).__name__), case)
    with mock.patch.object(Utf8Stream, "finish", lambda self: ""), mock.patch("sys.stderr", io.StringIO()):
        name = "test_a_stream_gives_what_pythons_incremental_decoder_gives"
        run(proof.control("bytes held at the end of a stream"), test_fuzz.Tokenizer(name))
    with mock.patch.object(files, "parse_json", careless_json), mock.patch("sys.stderr", io.StringIO()):
        name = "test_tensors_that_overlap_leave_holes_or_stand_twice_are_refused"
        run(proof.control("refusal of doubled keys"), test_fuzz.Headers(name))
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
