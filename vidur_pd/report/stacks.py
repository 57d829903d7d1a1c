"""Parts that are stacked in bars, one bar for each pool, band or run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from vidur_pd.report.series import Floats


@dataclass(frozen=True, slots=True)
class Stacks:
    """Amounts of the same parts in some bars."""

    names: tuple[str, ...]
    """Of the bars."""
    parts: Mapping[str, Floats]
    """[bars] by part, in the order in which they are stacked."""

    @property
    def whole(self) -> Floats:
        """[bars] sum of their parts."""
        return np.asarray(np.sum(list(self.parts.values()), axis=0))

    def over(self, amounts: Floats, scale: float) -> Stacks:
        """Parts over an amount of each bar, in per cent or another scale; over nothing they are NaN or infinite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return Stacks(self.names, {part: values / amounts * scale for part, values in self.parts.items()})

    def only(self, parts: Collection[str]) -> Stacks:
        return Stacks(self.names, {part: values for part, values in self.parts.items() if part in parts})
