"""Models by name if built in, or by path from a Hugging Face ``config.json`` or a YAML file of our own form."""

from __future__ import annotations

import difflib
import os
from functools import cache
from pathlib import Path

from aicb.data import FOLDER
from aicb.model.architecture import Model
from aicb.model.hugging_face import model_from_config, read_config_file
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from boundary.yaml_text import parse_yaml_mapping


def built_in_models() -> list[str]:
    """Names that `load_model` knows."""
    return sorted(file.stem for file in (FOLDER / "models").iterdir() if file.suffix == ".yaml")


def load_model(name_or_path: str) -> Model:
    """A built-in model by name, or one by path: a Hugging Face ``config.json`` (or a directory with one), or a YAML
    file with ``source`` and the fields of a ``config.json`` under ``config``, as the built-in ones are.

    Raises:
        InputError: unknown name (the nearest known ones are named), unreadable file, unsupported architecture.
    """
    if name_or_path in built_in_models():
        return _built_in(name_or_path)
    path = Path(name_or_path)
    if os.path.isdir(path):
        path = path / "config.json"
    if path.suffix == ".yaml":
        return _read_yaml(path)
    if os.path.isfile(path) or path.suffix == ".json":
        return read_config_file(path)
    known = built_in_models()
    name = name_or_path.lower()
    begun = [each for each in known if name and each.startswith(name)]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    near = list(dict.fromkeys([*begun, *close]))[:3] or known
    raise InputError(
        f"model: found {quoted(name_or_path)}, expected the path of a config.json or a built-in name"
        f" such as {', '.join(near)}"
    )


def model_files(name_or_path: str) -> list[Path]:
    """Files that `load_model` reads, which a command must not write over; none of a built-in name."""
    if name_or_path in built_in_models():
        return []
    path = Path(name_or_path)
    return [path / "config.json" if path.is_dir() else path]


@cache
def _built_in(name: str) -> Model:
    """The built-in files hold the cost-relevant fields of the published ``config.json``, so one reader serves both."""
    text = (FOLDER / "models" / f"{name}.yaml").read_text(encoding="utf-8")
    return _parse_yaml(text, name, f"models/{name}.yaml")


def _read_yaml(path: Path) -> Model:
    return _parse_yaml(read_text(path, "a model"), path.stem, str(path))


def _parse_yaml(text: str, name: str, where: str) -> Model:
    fields = parse_yaml_mapping(text, where, "a model")
    source, config = fields.get("source"), fields.get("config")
    if not isinstance(source, str):
        raise InputError(
            f"{where}: source: found {quoted(source)}, expected text that says where the dimensions come from"
        )
    if not isinstance(config, dict):
        raise InputError(f"{where}: config: found {quoted(config)}, expected the fields of a config.json")
    return model_from_config(config, name=name, source=source, where=where)
