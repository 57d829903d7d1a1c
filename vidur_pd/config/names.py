"""Names of policies, ours or of a class of the user's own, and other types that several sections have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from boundary.fields import NotBool
from boundary.quoting import quoted

Milliseconds = Annotated[float, NotBool, Field(ge=0, le=1e6, allow_inf_nan=False)]


def one_of(*built_in: str) -> AfterValidator:
    """A policy of ours by its name, or a class of the user's own; that is looked for when the simulation is built."""

    def check(policy: str) -> str:
        if policy not in built_in and not all(policy.rpartition(":")):
            expected = ", ".join((*built_in, "module:Class", "file.py:Class"))
            raise ValueError(f"found {quoted(policy)}, expected one of {expected}")
        return policy

    return AfterValidator(check)
