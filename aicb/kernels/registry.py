"""All kernels there are: the classes that the modules of this package define."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from types import MappingProxyType

import aicb.kernels as kernels
from aicb.kernels.kernel import Kernel


@cache
def kernel_classes() -> tuple[type[Kernel], ...]:
    """In the order of modules and, within one, of definition."""
    modules = [import_module(f"{kernels.__name__}.{module.name}") for module in iter_modules(kernels.__path__)]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return tuple(dict.fromkeys(each for each in found if issubclass(each, Kernel) and not isabstract(each)))


@cache
def classes_by_operation() -> Mapping[str, type[Kernel]]:
    """The kernel of each operation of a table."""
    return MappingProxyType({name: kind for kind in kernel_classes() for name in kind.operations})
