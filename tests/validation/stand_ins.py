"""Stand-ins for what an engine's modules import, so that those that decide run without the rest.

A stand-in is a module all of whose names are empty classes, unless they are set. Nothing of an engine is in here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar


class _Empty(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class StandIn(ModuleType):
    """``members``: of the empty classes."""

    __path__: ClassVar[list[str]] = []

    def __init__(self, name: str, members: Mapping[str, Any], **names: Any) -> None:
        super().__init__(name)
        self.__members = dict(members)
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Empty(name, (), self.__members)
        setattr(self, name, made)
        return made


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of some packages."""

    def __init__(self, packages: Sequence[str], members: Mapping[str, Any]) -> None:
        self._packages, self._members = packages, members

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        is_theirs = name.split(".")[0] in self._packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_theirs else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name, self._members)

    def exec_module(self, module: ModuleType) -> None: ...
