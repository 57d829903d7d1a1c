"""How stock ns-3 is obtained: what is unpacked, and what is said where that is not possible."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

FETCH = Path(__file__).parents[2] / "third_party" / "ns-3" / "fetch.py"


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, on a platform that fits."""
    spec = importlib.util.spec_from_file_location("ns3_fetch", FETCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pretend(monkeypatch, "Linux", "x86_64", ("glibc", "2.36"))
    return module


def pretend(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str]) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: libc)


def wheel_of(fetch: ModuleType, path: Path) -> Path:
    """A small wheel with the folders of the real one."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in (f"{fetch.HEADERS}node.h", "ns3/include/boost/any.h", f"{fetch.LICENCES}LICENSE", "ns3/ns/ns.py"):
            archive.writestr(name, name)
        for library in (*fetch.LIBRARIES, "libns3.44-wifi.so"):
            archive.writestr(f"ns3/lib64/{library}", library)
    return path


def run(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["fetch.py", *map(str, arguments)])
    code = fetch.main()
    assert isinstance(code, int)
    return code


def test_only_what_is_linked_is_unpacked_and_kept(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Headers of ns-3, the named libraries and the licence; a second call finds them without the wheel."""
    wheel = wheel_of(fetch, tmp_path / "any.whl")
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    cache = tmp_path / "cache"
    assert run(fetch, monkeypatch, "--into", cache, "--wheel", wheel) == 0
    folder = Path(capsys.readouterr().out.strip())
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {"include/ns3/node.h", "licences/LICENSE", *(f"lib/{library}" for library in fetch.LIBRARIES)}
    assert list(cache.iterdir()) == [folder]
    wheel.unlink()
    assert run(fetch, monkeypatch, "--into", cache) == 0
    assert capsys.readouterr().out.strip() == str(folder)


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = wheel_of(fetch, tmp_path / "any.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert run(fetch, monkeypatch, "--into", tmp_path / "cache", "--wheel", wheel) == 1
    message = f"ns-3: any.whl: found SHA-256 {found}, expected {fetch.WHEEL_SHA256} ({fetch.WHEEL})\n"
    assert capsys.readouterr().err == message
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_is_one_line_with_the_remedy(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip is told to look nowhere."""
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    assert run(fetch, monkeypatch, "--into", tmp_path / "cache") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("ns-3: cannot download ns3==3.44.post0 (")
    assert "without a network give the file: --wheel" in error


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Darwin", "arm64", ("", "")),
        ("Linux", "aarch64", ("glibc", "2.36")),
        ("Linux", "x86_64", ("musl", "1.2")),
        ("Linux", "x86_64", ("glibc", "2.17")),
    ],
)
def test_platforms_without_such_a_wheel_are_named(
    fetch: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    system: str,
    machine: str,
    libc: tuple[str, str],
) -> None:
    pretend(monkeypatch, system, machine, libc)
    assert run(fetch, monkeypatch, "--into", tmp_path) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ns-3: found platform {system} {machine}")
    assert "expected Linux x86_64 with glibc >= 2.28" in error


def test_a_build_without_ns3_says_how_to_get_it() -> None:
    """In a process of its own, in which the extension is made unfindable."""
    program = (
        "import sys; sys.modules['netsim._ns3'] = None\n"
        "import netsim\n"
        "try:\n    netsim.create_backend('ns3', netsim.single_switch(2))\n"
        "except netsim.BackendUnavailable as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    assert ran.stdout == (
        "backend ns3: not contained in this build; install from the sources with "
        "`pip install . --config-settings cmake.define.PD_NS3=ON` (Linux x86-64; see third_party/ns-3)\n"
    )
