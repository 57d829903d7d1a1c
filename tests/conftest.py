"""Options of a test run, of linear algebra, and of Hypothesis: no deadlines, which a busy machine misses."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Read when numpy is first imported, here and by every command that a test starts. Workers share the cores already:
threads of each on top double the processor time of kriging systems of 500 points and gain nothing."""

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="many more random inputs: minutes to hours instead of seconds")
