"""The space of a search: a base configuration and choices of its fields, read from YAML."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from aicb import canonical_gpu
from boundary.errors import InputError
from boundary.fields import Count, PositiveFloat, Ratio, Section, Seed
from boundary.yaml_text import read_yaml_mapping
from vidur_pd.config import PricesConfig, SimulationConfig
from vidur_pd.config.file import Tree, anchor_paths, apply_override, describe, parse_config, set_field
from vidur_pd.search.space.objective import Objective

MOST_POINTS: Final = 50_000
"""Every point is checked, some milliseconds each, before the first is run."""
POOLS: Final = "cluster.pools."
SHAPE: Final = frozenset(("instances", "tp", "ep", "dp", "pp", "hardware"))
"""Fields of a pool that say how many GPUs of which kind it has, and how these divide the work."""
SAMPLERS: Final = ("bound", "tpe", "random", "nsga2")

Point = tuple[int, ...]
"""Place of the choice in each dimension."""
Dimensions = Annotated[
    dict[str, Annotated[list[Any], Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=40)
]


class Fidelity(Section):
    """How dear an evaluation is."""

    requests: Count | None = None
    """The first so many of the workload; ``None``: all."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Fields that differ from the configuration."""


CHEAP: Final = Fidelity(requests=600, set={"network": {"backend": "analytical", "coupling": "isolated"}})
MIDDLE: Final = Fidelity(requests=2400)
FULL: Final = Fidelity()


class SpaceFile(Section):
    """A search, as a file says it."""

    base: Path | dict[str, Any]
    """A configuration: a file, relative to this one, or its content."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Fields of it that differ, for all points."""
    choices: Dimensions
    """By field, what it may be. A mapping sets fields below it: ``cluster.pools.prefill: [{tp: 8, ep: 8}, {dp: 16, ep:
    16}]``."""
    objective: Objective
    gpus_min: Count = 1
    gpus_max: Count | None = None
    prices: dict[str, PositiveFloat] | None = None
    """Per GPU and hour, by the GPU's name; left out: those of the configuration (``prices.gpu_hour``). An objective of
    cost needs one of both."""
    fidelities: Annotated[tuple[Fidelity, ...], Field(min_length=1, max_length=5)] = (CHEAP, MIDDLE, FULL)
    """From cheap to dear: who fails by more than ``slack`` goes no further. The last one decides."""
    slack: Annotated[Ratio, Field(le=10)] = 0.25
    """Part of a limit, and of the best value, by which a cheap evaluation may be wrong."""
    sampler: Literal["bound", "tpe", "random", "nsga2"] = "bound"
    """Who proposes points: ``bound`` takes them by their closed-form promise, the others are Optuna's."""
    evaluations: Count | None = None
    """Most points that are run; ``None``: until none is left that could be better."""
    batch: Annotated[Count, Field(le=1024)] = 8
    """Points proposed at a time, whatever the number of processes, so that these change nothing."""
    seed: Seed = 0
    """Of the sampler."""


@dataclass(frozen=True, eq=False)
class Space:
    """Points, each of which is a configuration."""

    file: SpaceFile
    base: Tree
    """With absolute paths."""
    folder: Path
    """Where relative paths among the choices start."""
    where: str
    """How errors begin."""

    @property
    def dimensions(self) -> Mapping[str, Sequence[Any]]:
        return self.file.choices

    @cached_property
    def prices(self) -> Mapping[str, float] | None:
        """Per GPU and hour, of the search or of its configuration."""
        if self.file.prices is not None:
            return {canonical_gpu(gpu): price for gpu, price in self.file.prices.items()}
        prices = self.base.get("prices")
        return None if prices is None else _parsed_prices(prices, self.where).gpu_hour

    @property
    def size(self) -> int:
        return math.prod(map(len, self.dimensions.values()))

    def points(self) -> Iterator[Point]:
        """All, valid or not, the last dimension changing fastest."""
        return itertools.product(*(range(len(choices)) for choices in self.dimensions.values()))

    def tree(self, point: Point, fidelity: Fidelity | None = None) -> Tree:
        """The configuration of a point as a tree. Raises: InputError, for a field that cannot be set."""
        tree = deepcopy(self.base)
        for (field, choices), place in zip(self.dimensions.items(), point, strict=True):
            set_choice(tree, field, choices[place], f"{self.where}: choices.{field}")
        for field, value in ({} if fidelity is None else fidelity.set).items():
            set_choice(tree, field, value, f"{self.where}: fidelities: {field}")
        anchor_paths(tree, self.folder)
        return tree

    def config(self, point: Point, fidelity: Fidelity | None = None) -> SimulationConfig:
        """Raises: InputError, where the point is no configuration."""
        config = parse_config(self.tree(point, fidelity), Path(), self.where)
        if config.planner is not None:
            raise InputError(
                f"{self.where}: planner: found in a search, which ranks points by their GPUs, expected "
                "set: {planner: null}"
            )
        return config

    def label(self, point: Point) -> str:
        """What is chosen, without what all points have in common."""
        return ", ".join(
            f"{short_name(field)} {choice_text(choices[place])}"
            for (field, choices), place in zip(self.dimensions.items(), point, strict=True)
            if len(choices) > 1
        )

    def besides(self, point: Point) -> str:
        """The same without what a deployment is described by: GPUs of pools, and how these divide the work."""
        chosen = []
        for (field, choices), place in zip(self.dimensions.items(), point, strict=True):
            choice = _besides_shape(field, choices[place])
            if len(choices) > 1 and choice is not None:
                chosen.append(f"{short_name(field)} {choice_text(choice)}")
        return ", ".join(chosen)

    @cached_property
    def digest(self) -> str:
        """Of all that outcomes follow from: evaluations of one space are of no use to another."""
        evaluated = self.file.model_dump(
            mode="json", include={"choices", "objective", "prices", "fidelities"}, exclude_unset=False
        )
        text = json.dumps([self.base, evaluated], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_space(path: Path, settings: Sequence[str] = ()) -> Space:
    """Raises: InputError, with file, field, what was found and what was expected."""
    tree = read_yaml_mapping(path, "a search: base, choices and objective")
    for setting in settings:
        apply_override(tree, setting)
    return make_space(tree, path.parent, str(path))


def make_space(tree: Tree, folder: Path, where: str) -> Space:
    """A space from what its file says; relative paths start at ``folder``. Raises: InputError."""
    try:
        file = SpaceFile.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{where}: {describe(error, SpaceFile)}") from None
    if isinstance(file.base, Path):
        path = folder / file.base
        base, start = read_yaml_mapping(path, "a configuration"), path.parent
    else:
        base, start = deepcopy(file.base), folder
    for field, value in file.set.items():
        set_choice(base, field, value, f"{where}: set.{field}")
    anchor_paths(base, start)
    space = Space(file, base, folder, where)
    if file.objective.needs_prices and space.prices is None:
        raise InputError(f"{where}: prices: missing, expected the price of each GPU per hour, as {{h200: 3.5}}")
    if space.size > MOST_POINTS:
        raise InputError(f"{where}: choices: found {space.size} points, expected at most {MOST_POINTS}")
    for field, choices in file.choices.items():
        for choice in choices:
            set_choice(deepcopy(base), field, choice, f"{where}: choices.{field}")
    return space


def _parsed_prices(tree: Any, where: str) -> PricesConfig:
    try:
        return PricesConfig.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{where}: prices.{describe(error, PricesConfig)}") from None


def set_choice(tree: Tree, field: str, choice: Any, where: str) -> None:
    """Sets a field, or with a mapping the fields below it, in place. Raises: InputError."""
    if isinstance(choice, Mapping) and choice:
        for key, below in choice.items():
            set_choice(tree, f"{field}.{key}", below, where)
        return
    set_field(tree, field, deepcopy(choice), where)


def _besides_shape(field: str, choice: Any) -> Any:
    """What a choice says of a pool besides its `SHAPE`, or of anything else; ``None``: nothing."""
    pool, _, name = field.removeprefix(POOLS).partition(".")
    if not field.startswith(POOLS) or not pool:
        return choice
    if name:
        return None if name in SHAPE else choice
    rest = {key: value for key, value in choice.items() if key not in SHAPE} if isinstance(choice, Mapping) else choice
    return rest or None


def short_name(field: str) -> str:
    """``cluster.pools.prefill.instances`` as ``prefill.instances``."""
    return field.removeprefix(POOLS).removeprefix("cluster.topology.")


def choice_text(choice: Any) -> str:
    """A choice on one line."""
    if isinstance(choice, Mapping):
        return " ".join(f"{key} {choice_text(value)}" for key, value in choice.items())
    return str(choice)
