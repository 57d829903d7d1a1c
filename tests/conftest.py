"""Options of a test run, of linear algebra, and of Hypothesis.

Hypothesis has no deadlines, which a busy machine misses, and draws the same examples in every run, so that a change is
judged by itself; with ``--long`` it draws new ones.
"""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Read when numpy is first imported, here and by every command that a test starts. Workers share the cores already:
threads of each on top double the processor time of kriging systems of 500 points and gain nothing."""

settings.register_profile("same-examples", deadline=None, derandomize=True)
settings.register_profile("new-examples", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="many more random inputs: minutes to hours instead of seconds")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("new-examples" if config.getoption("--long") else "same-examples")
