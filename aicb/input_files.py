"""Files behind a model or a GPU that is named by a path: what a command must not write over."""

from __future__ import annotations

from pathlib import Path

from aicb.catalog import built_in_models
from aicb.gpu import TABLE_FILE, known_gpus

_PROVENANCE = "provenance.json"


def model_files(name_or_path: str) -> list[Path]:
    """What `aicb.load_model` reads; nothing for a built-in name."""
    if name_or_path in built_in_models():
        return []
    path = Path(name_or_path)
    return [path / "config.json" if path.is_dir() else path]


def gpu_files(name_or_path: str) -> list[Path]:
    """What `aicb.get_gpu` and the estimators read; nothing for a built-in name."""
    if name_or_path in known_gpus():
        return []
    path = Path(name_or_path)
    folder = path if path.is_dir() else path.parent
    parts = [found for found in folder.glob("*.parquet") if found.with_suffix(f".{_PROVENANCE}").exists()]
    return [folder / "gpu.yaml", path, folder / TABLE_FILE, *folder.glob(f"*{_PROVENANCE}"), *parts]
