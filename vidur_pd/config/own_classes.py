"""Classes of the user's own, which a configuration names by ``module:Class`` or ``path/to/file.py:Class``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from boundary.errors import InputError

SEPARATOR: Final = ":"
FAULTS: Final = (Exception, SystemExit)
"""What code of the user's own may raise that ends a run in one line; interruptions pass through."""
_PACKAGE: Final = Path(__file__).parents[1]
_REFUSED_CALL: Final = re.compile(
    r"(?P<name>\w+)\(\): incompatible function arguments\..*?"
    r"1\. \(self: [^,)]+(?:, )?(?P<expected>[^)]*)\).*Invoked with: [^,]+,? ?(?P<found>.*)"
)
"""How pybind11 refuses arguments of other types than a compiled method takes."""


def load_class(field: str, name: str, base: type) -> type:
    """The class that ``name`` names, a subclass of ``base`` that can be made without arguments.

    Modules are looked for where Python looks, and in the current folder.

    Raises: InputError, where there is none or its module cannot be imported.
    """
    place, _, class_name = name.rpartition(SEPARATOR)
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"{field}: {place}: found no such file, expected one with a class {class_name}")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else _module_named(place)
    except ModuleNotFoundError as error:
        missing = f"{field}: {place}: found no such module{_innermost(error)}"
        raise InputError(f"{missing}, expected one that Python can import ({error})") from error
    except FAULTS as error:
        raise InputError(f"{field}: {place}: {describe(error)}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, base) or found is base:
        what = "nothing" if found is None else f"a class {found.__name__}" if isinstance(found, type) else repr(found)
        raise InputError(f"{field}: found {what} as {class_name!r} in {place}, expected a subclass of {base.__name__}")
    _check_can_be_made(f"{field}: {place}", found)
    return found


def _check_can_be_made(where: str, found: type) -> None:
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        names = " and ".join(missing)
        raise InputError(f"{where}: found {found.__name__} without {names}, expected a class that defines {names}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise InputError(f"{where}: found {found.__name__}, expected a class without arguments ({error})") from error


def check_shapes(found: type, contract: type, hooks: Sequence[str]) -> None:
    """Refuses a class some of whose hooks do not take the arguments of those of the contract. Raises: TypeError."""
    for name in hooks:
        member, expected = vars(found).get(name), inspect.signature(getattr(contract, name)).parameters
        if member is None:
            continue
        expects = f"expected {name}({', '.join(expected)})"
        if not inspect.isfunction(member):
            raise TypeError(f"{found.__name__}: found {name} = {member!r}, {expects}")
        try:
            inspect.signature(member).bind(*expected)
        except TypeError:
            raise TypeError(f"{found.__name__}: found {name}{inspect.signature(member)}, {expects}") from None


def check_names(found: type, hooks: Sequence[str]) -> None:
    """Refuses a class with a public method that is no hook, as nothing would call it. Raises: TypeError.

    Classes in it are none, as its options.
    """
    for name, member in vars(found).items():
        if callable(member) and not (isinstance(member, type) or name.startswith("_") or name in hooks):
            expects = f"expected {', '.join(hooks)}, or _{name}"
            raise TypeError(f"{found.__name__}: found method {name}, which nothing calls; {expects}")


def _module_named(name: str) -> ModuleType:
    with _current_folder_is_searched():
        return importlib.import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    """Runs a file once, however many fields name it."""
    name = f"_classes_of_file_{path.absolute()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None, "the file ends in .py"
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextmanager
def _current_folder_is_searched() -> Iterator[None]:
    """Modules of the current folder can be imported, also by an installed command."""
    folder = str(Path.cwd())
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def describe(error: BaseException) -> str:
    """An exception of the user's code in one line, with the file and line where it came up."""
    text, where = " ".join(str(error).split()), _innermost(error)
    if isinstance(error, TypeError) and (call := _REFUSED_CALL.match(text)):
        expected = call["expected"].replace("typing.SupportsInt | typing.SupportsIndex", "int")
        expected = re.sub(r"\w[\w.]*\.(\w+)", r"\1", expected)
        text = f"found {call['name']}({call['found']}), expected {call['name']}({expected})"
    return f"{text}{where}" if isinstance(error, InputError) else f"{type(error).__name__}: {text}{where}"


def _innermost(error: BaseException) -> str:
    """`` (file:line)`` of the last frame that is neither the package's nor of Python's import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", f"{_PACKAGE}{os.sep}")) and "importlib" not in frame.filename
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def is_of_the_package(error: BaseException) -> bool:
    """The exception came up in this package, and not in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(_PACKAGE)
