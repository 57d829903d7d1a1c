"""The page on the architecture: what it names is there, and what it shows runs."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import vidur_pd
from aicb import Precision
from tests.integration.small_runs import config, pool, requests

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# file: (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
ROWS = [(20_000 * index, 300 + 90 * (index % 5), 20) for index in range(30)]
PLANNED = {"interval_s": 0.1, "startup": {"engine_s": 0.1}, "pools": {"p": {"initial": 1}, "d": {}}}
PAIR = [pool("p", "prefill", instances=2), pool("d", "decode")]


def paths_named() -> list[str]:
    """Files and folders of the repository, by their names from the root or from `vidur_pd`."""
    return sorted(set(re.findall(r"`([a-z_0-9]+/[a-z_0-9/.]*)`", PAGE)))


@pytest.mark.parametrize("path", paths_named())
def test_files_and_folders_that_the_page_names_are_there(path: str) -> None:
    homes = (ROOT, *(ROOT / package for package in ("vidur_pd", "aicb", "simccl", "netsim")))
    assert any(any(home.glob(path.rstrip("/"))) for home in homes)


def commands_named() -> list[str]:
    """Commands with what follows them, such as ``simccl plan --op …``."""
    return sorted(set(re.findall(r"`((?:vidur-pd|simccl|aicb|netsim) [a-z][^`]*)`", PAGE)))


@pytest.mark.parametrize("command", commands_named())
def test_commands_that_the_page_names_have_the_options_it_gives_them(command: str) -> None:
    program, verb, *rest = command.split()
    app = import_module(f"{program.replace('-', '_')}.__main__").app
    taken = {option for parameter in get_command(app).commands[verb].params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= taken


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(BLOCKS[name])
    return path


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("longest_wait_first.py:TwoPrompts", {"engine": {"policy": "{path}", "num_kv_blocks": 300}}),
        ("sticky.py:Sticky", {"routing": {"policy": "{path}"}, "engine": {"prefix_caching": True}}),
        ("two_in_a_queue.py:TwoInAQueue", {"planner": {"policy": "{path}", **PLANNED}}),
        ("reserve_early.py:ReserveEarly", {"kv_transfer": {"mode": "{path}"}}),
    ],
)
def test_classes_of_the_page_serve_every_request(
    tmp_path: Path, name: str, section: dict[str, dict[str, object]]
) -> None:
    file, _, class_name = name.partition(":")
    path = f"{written(tmp_path, file)}:{class_name}"
    fields = {
        key: {field: path if value == "{path}" else value for field, value in values.items()}
        for key, values in section.items()
    }
    summary = vidur_pd.simulate(config(PAIR, **fields), requests(ROWS)).summary
    assert summary.completed == len(ROWS)


def test_the_kernel_of_the_page_has_its_cost(tmp_path: Path) -> None:
    """8 rows of 100 in bf16: read and written once, 2 bytes each."""
    scope = runpy.run_path(str(written(tmp_path, "row_softmax.py")))
    cost = scope["RowSoftmax"](8, 100).cost(Precision())
    assert (cost.flops, cost.moved_bytes) == (4000.0, 3200.0)
