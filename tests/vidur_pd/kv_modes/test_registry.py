"""Modes of KV transfers by name: what is found, and what is refused in one line before anything is simulated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool
from tests.integration.test_command_line import vidur_pd, write_config
from tests.vidur_pd.kv_modes.push_in_halves import PushInHalves
from vidur_pd.config import TRANSFER_MODES
from vidur_pd.config.file import load_config
from vidur_pd.kv.transfer.modes.calls import ModeCalls
from vidur_pd.kv.transfer.modes.registry import MODES, mode_class
from vidur_pd.simulation.plan import plan_simulation

HALVES = "tests.vidur_pd.kv_modes.push_in_halves:PushInHalves"
PAIR = [pool("p", "prefill"), pool("d", "decode")]
HEAD = "from vidur_pd.kv.transfer.modes import Transfer, TransferMode\n"
NEEDED = "    def on_prefilled(self, transfer): ...\n    def on_room(self, transfer): ...\n"
WRONG = {
    "import no_such_package": "found no such module (MODULE.py:1), expected one that Python can import",
    "Other = 1": "found nothing as 'Mine' in MODULE, expected a subclass of TransferMode",
    "Mine = 1": "found 1 as 'Mine' in MODULE, expected a subclass of TransferMode",
    "class Mine: ...": "expected a subclass of TransferMode",
    HEAD + "class Mine(TransferMode):\n    def on_room(self, transfer): ...": "found Mine without on_prefilled",
    HEAD + "class Mine(TransferMode): ...": "found Mine without on_prefilled and on_room",
    HEAD + "class Mine(TransferMode):\n" + NEEDED + "    def on_launch(self, transfer): ...": (
        "found method on_launch, which nothing calls; "
        "expected on_routed, on_launched, on_prefilled, on_room, or _on_launch"
    ),
    HEAD + "class Mine(TransferMode):\n" + NEEDED + "    def on_routed(self): ...": (
        "found on_routed(self), expected on_routed(self, transfer)"
    ),
    HEAD + "class Mine(TransferMode):\n" + NEEDED + "    def __init__(self, share): ...": (
        "found Mine, expected a class without arguments (missing a required argument: 'share')"
    ),
}


def test_the_modes_that_come_with_the_simulator_have_names() -> None:
    assert {name: mode_class(name) for name in TRANSFER_MODES} == MODES
    assert mode_class(HALVES) is PushInHalves


def test_only_modes_with_a_hook_for_launches_hear_of_them() -> None:
    hears = {name: ModeCalls(name, mode_class(name)()).hears_launches for name in (*MODES, HALVES)}
    assert hears == {"pull": False, "push": False, "chunked": True, "layerwise": True, HALVES: True}


@pytest.mark.parametrize("name", ["pul", "", "Push", ":Mine", "mine:"])
def test_what_is_no_name_of_a_mode_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as raised:
        load_config(write_config(tmp_path), [f"kv_transfer.mode='{name}'"])
    names = "pull, push, chunked, layerwise, module:Class, file.py:Class"
    expected = f"kv_transfer.mode: found '{name}', expected one of {names}"
    assert str(raised.value).endswith(expected)


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_class_that_is_no_mode_is_refused_in_one_line(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module lies in the current folder, where an installed command finds it too."""
    text, expected = list(WRONG.items())[number]
    module = f"wrong_mode_{number}"
    (tmp_path / f"{module}.py").write_text(text + "\n")
    path = write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    searched = [folder for folder in sys.path if folder]
    monkeypatch.setattr(sys, "path", list(searched))
    with pytest.raises(InputError) as raised:
        plan_simulation(load_config(path, [f"kv_transfer.mode={module}:Mine"]))
    message = str(raised.value)
    assert message.startswith(f"kv_transfer.mode: {module}: ") or f" in {module}, " in message
    assert expected.replace("MODULE", module) in message
    assert "\n" not in message
    assert sys.path == searched


def test_the_resolved_configuration_keeps_the_name() -> None:
    tree = config(PAIR, kv_transfer={"mode": HALVES})
    assert tree.kv_transfer.mode == HALVES
    assert tree.model_dump(mode="json")["kv_transfer"]["mode"] == HALVES


def test_a_mode_of_the_current_folder_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that breaks its contract ends the run in one line with exit code 2."""
    right = HEAD + (
        "class Mine(TransferMode):\n"
        "    def on_prefilled(self, transfer):\n        transfer.reserve()\n"
        "    def on_room(self, transfer):\n        transfer.send(transfer.context_tokens)\n"
    )
    (tmp_path / "users_modes.py").write_text(
        right + right.removeprefix(HEAD).replace("Mine", "Bad").replace("_tokens", "_token")
    )
    path = write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = [
        vidur_pd("run", path, "-o", tmp_path / mode.replace(":", "_"), "--set", f"kv_transfer.mode={mode}")
        for mode in ("pull", "users_modes:Mine", "users_modes:Bad")
    ]
    assert [each.returncode for each in found] == [0, 0, 2], [each.stderr for each in found]
    rows = [(tmp_path / name / "requests.csv").read_text() for name in ("pull", "users_modes_Mine")]
    assert rows[0] == rows[1]
    line = found[2].stderr.splitlines()[-1]
    assert line.startswith("vidur-pd: kv_transfer.mode users_modes:Bad: request ")
    assert "on_room raised AttributeError: 'KvTransfer' object has no attribute 'context_token'" in line
