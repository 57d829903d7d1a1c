"""What all parts of the configuration tree are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen part of the tree; unknown fields are refused. Built when validated, with the tree it is part of."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
