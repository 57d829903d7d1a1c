"""Models in YAML files of a user, in the form of the built-in ones."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from aicb import InputError, load_model

SHIPPED = (files("aicb") / "data" / "models" / "qwen3-8b.yaml").read_text()


def test_a_file_in_the_form_of_the_built_in_ones_is_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "copy.yaml").write_text(SHIPPED)
    model = load_model(str(tmp_path / "copy.yaml"))
    assert model == load_model("qwen3-8b")
    assert model.name == "copy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config: {}", r"m\.yaml: source: found None, expected text"),
        ("source: s", r"m\.yaml: config: found None, expected the fields"),
        ("- 1", r"m\.yaml: found .1., expected a model"),
        ("{", r"m\.yaml line 2: not YAML"),
        (SHIPPED.replace("hidden_size: 4096", "hidden_size: wide"), r"m\.yaml: hidden_size: found 'wide', expected"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        load_model(str(tmp_path / "m.yaml"))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: found no such file, expected a model"):
        load_model(str(tmp_path / "none.yaml"))
