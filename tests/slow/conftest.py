"""Slow proofs: run with `python -m pytest tests/slow`, `--short` for the form that CI runs."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="fewer repetitions, the same proofs")


@pytest.fixture
def short(request: pytest.FixtureRequest) -> bool:
    """Whether the short form is asked for."""
    return bool(request.config.getoption("--short"))
