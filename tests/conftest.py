"""Options of a test run, and of Hypothesis: no deadlines, which a busy machine misses."""

import pytest
from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="many more random inputs: minutes to hours instead of seconds")
