"""Finding a model: built in by name, or from a Hugging Face ``config.json`` by path."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources
from pathlib import Path

import yaml

from aicb.errors import InputError
from aicb.hf import model_from_config, read_config_file
from aicb.model import Model


def built_in_models() -> list[str]:
    """Names that `load_model` knows."""
    files = resources.files("aicb").joinpath("models").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_model(name_or_path: str) -> Model:
    """A built-in model by name, or a Hugging Face ``config.json`` (or a directory with one) by path.

    Raises:
        InputError: unknown name (the nearest known ones are named), unreadable file, unsupported architecture.
    """
    if name_or_path in built_in_models():
        return _built_in(name_or_path)
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file() or path.suffix == ".json":
        return read_config_file(path)
    known = built_in_models()
    near = difflib.get_close_matches(name_or_path.lower(), known, n=3, cutoff=0.4) or known
    raise InputError(
        f"model: found {name_or_path!r}, expected the path of a config.json or a built-in name"
        f" such as {', '.join(near)}"
    )


@cache
def _built_in(name: str) -> Model:
    """The built-in files hold the cost-relevant fields of the published ``config.json``, so one reader serves both."""
    text = resources.files("aicb").joinpath("models", f"{name}.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    return model_from_config(document["config"], name=name, source=document["source"], where=f"models/{name}.yaml")
