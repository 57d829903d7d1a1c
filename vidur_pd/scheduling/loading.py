"""Policies by their names in a configuration: one of the core's, or ``module:Class``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from boundary.errors import InputError

SEPARATOR: Final = ":"


def load_class(field: str, name: str, base: type) -> type:
    """The class that ``module:Class`` or ``path/to/file.py:Class`` names, a subclass of ``base``.

    Raises: InputError, where there is none or its module cannot be imported.
    """
    place, _, class_name = name.rpartition(SEPARATOR)
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"{field}: {place}: found no such file, expected one with a class {class_name}")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = f"{field}: {place}: found no such module{_innermost(error)}"
        raise InputError(f"{missing}, expected one that Python can import ({error})") from error
    except Exception as error:
        raise InputError(f"{field}: {place}: {describe(error)}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, base) or found is base:
        what = "nothing" if found is None else repr(found)
        raise InputError(f"{field}: found {what} as {class_name!r} in {place}, expected a subclass of {base.__name__}")
    return found


def _module_of_file(path: Path) -> ModuleType:
    """Runs a file once, however many pools name it."""
    name = f"_policy_file_{path.absolute()}"
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


def describe(error: BaseException) -> str:
    """An exception of the user's code in one line, with the file and line where it came up."""
    text, where = " ".join(str(error).split()), _innermost(error)
    return f"{text}{where}" if isinstance(error, InputError) else f"{type(error).__name__}: {text}{where}"


def _innermost(error: BaseException) -> str:
    """`` (file:line)`` of the last frame that is not ours or Python's import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", str(Path(__file__).parents[1]))) and "importlib" not in frame.filename
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
