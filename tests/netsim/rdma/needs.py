"""What tests of real traffic need of the system; where it is missing they skip, and say what."""

from __future__ import annotations

import importlib.util

import pytest

needs_verbs = pytest.mark.skipif(
    importlib.util.find_spec("netsim._verbs") is None, reason="built without libibverbs (libibverbs-dev was not there)"
)
needs_ucx = pytest.mark.skipif(
    importlib.util.find_spec("netsim._ucx") is None, reason="built without UCX (libucx-dev was not there)"
)
