"""Options of a test run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="many more random inputs: minutes to hours instead of seconds")
