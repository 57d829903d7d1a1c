"""Modules of installed packages."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from aicb.profiling.libraries.modules import import_modules


def test_modules_come_in_the_order_of_their_names() -> None:
    found, missing = import_modules("json", ["json.encoder", "json.decoder"])
    assert [each.__name__ for each in found] == ["json.encoder", "json.decoder"]
    assert missing is None


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_built.py").write_text("raise OSError('libcuda.so: no such file\\nsecond line')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_modules("nowhere_installed", ["nowhere_installed"]) == ([], "nowhere_installed: not installed")
    assert import_modules("half_built", ["half_built"]) == ([], "half_built: OSError: libcuda.so: no such file")
