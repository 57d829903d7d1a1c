#!/usr/bin/env python3
"""The site of all documents of the repository: ``build/site``, whose links are checked.

    scripts/site.py [FOLDER]

Documents keep their places, so that their links hold here, in an editor and where the repository is hosted. Files that
they link to come along; folders have no page, so that a link to one becomes its name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def gather(target: Path) -> None:
    """All documents, and the files that they link to, below ``target``."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in listed:
        source = REPOSITORY / name
        text = source.read_text(encoding="utf-8")
        _write(target / name, _without_folders(text, source.parent).encode())
        for _, link, _ in LINK.findall(text):
            linked = source.parent / link
            if linked.is_file() and linked.suffix != ".md":
                place = Path(os.path.relpath(linked.resolve(), REPOSITORY))
                _write(target / place, linked.read_bytes())


def _without_folders(text: str, folder: Path) -> str:
    return LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], text)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    build = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REPOSITORY / "build"
    documents, configuration = build / "site-documents", build / "mkdocs.yml"
    gather(documents)
    text = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    configuration.write_text(text.replace("build/site", str(build / "site")), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(configuration)]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
