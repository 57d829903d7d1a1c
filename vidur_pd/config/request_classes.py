"""What a configuration may say about classes of requests: their shares and priorities."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from boundary.fields import NotBool, Section
from vidur_pd.config.lengths import Lengths

Priority = Annotated[int, NotBool, Field(ge=-(2**31), le=2**31 - 1)]
"""Of two requests the one with the smaller number goes first, as in vLLM."""
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)]


class RequestClass(Section):
    """A class of requests."""

    share: Annotated[float, NotBool, Field(gt=0, le=1)]
    """Of the requests, or of the sessions where there are any; shares add up to 1."""
    priority: Priority = 0
    lengths: Lengths | None = None
    """Instead of the ``lengths`` of the workload."""


RequestClasses = Annotated[dict[ClassName, RequestClass], Field(min_length=1, max_length=1000)]


def check_shares(classes: RequestClasses) -> None:
    """Raises: ValueError, where shares do not add up to 1."""
    total = math.fsum(each.share for each in classes.values())
    if abs(total - 1) > 1e-6:
        raise ValueError(f"classes: found shares that add up to {total:g}, expected 1")
