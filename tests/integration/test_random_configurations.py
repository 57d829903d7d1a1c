"""Random valid configurations over all backends and couplings: nothing is lost, everything adds up, runs repeat.

``--long`` takes 200 of them instead of 10. What more load and less bandwidth do is in `test_changed_conditions`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.integration.random_configurations import NETWORKS, random_scenario, with_faults
from tests.integration.run_checks import check_run, check_stream, run_scenario
from tests.integration.test_command_line import REPOSITORY

SOME: Final = range(10)
MANY: Final = range(200)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", MANY if metafunc.config.getoption("--long") else SOME)


def test_all_backends_and_couplings_take_turns() -> None:
    drawn = Counter(random_scenario(seed).network for seed in SOME)
    assert drawn == {f"{backend}-{coupling}": NETWORKS.count((backend, coupling)) for backend, coupling in NETWORKS}


def test_every_run_is_complete_and_adds_up(seed: int, tmp_path: Path) -> None:
    """Seeds take turns in being streamed with faults and without."""
    scenario = random_scenario(seed)
    result = run_scenario(scenario, tmp_path)
    check_run(result)
    faulty = run_scenario(with_faults(scenario, tmp_path / "bare"), tmp_path / "faulty")
    check_run(faulty)
    check_stream(faulty if seed % 2 else result, tmp_path)


def test_hash_seeds_do_not_change_any_byte(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seeds = MANY if pytestconfig.getoption("--long") else SOME[::7]
    written = [files_of(tmp_path / "results", hash_seed, list(seeds)) for hash_seed in ("1", "2")]
    assert written[0].keys() == written[1].keys()
    assert [name for name, content in written[0].items() if content != written[1][name]] == []


def files_of(folder: Path, hash_seed: str, seeds: list[int]) -> dict[str, bytes]:
    """All files of the results of some seeds, written by a process of its own; they are gone afterwards, so that
    another process can write them to the same place, which some of them name."""
    command = [sys.executable, "-m", "tests.integration.write_results", str(folder), *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, env=environment, cwd=REPOSITORY, check=True, capture_output=True)
    paths = [path for seed in seeds for path in sorted((folder / str(seed)).iterdir())]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    shutil.rmtree(folder)
    return found
