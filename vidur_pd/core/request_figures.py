"""Writes the figures of requests for C++: one line for each field of ``RequestFigures``.

python request_figures.py vidur_pd/metrics/request_figures.py request_figures.inc
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

KINDS = {
    "Value": ("std::int64_t", "false"),
    "Maybe": ("std::optional<std::int64_t>", "false"),
    "Place": ("std::optional<std::int64_t>", "false"),
    "Stage": ("std::optional<std::int64_t>", "true"),
}
"""C++ type of each kind of figure, and whether it is a stamp of a stage."""


def main(source: Path, target: Path) -> None:
    """Reads the class without importing it: the build has no numpy."""
    module = ast.parse(source.read_text(encoding="utf-8"))
    (figures,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "RequestFigures")
    lines = []
    for node in figures.body:
        if isinstance(node, ast.AnnAssign):
            kind, is_stage = KINDS[ast.unparse(node.annotation)]
            lines.append(f"REQUEST_FIGURE({kind}, {ast.unparse(node.target)}, {is_stage})")
    text = "\n".join([*lines, "#undef REQUEST_FIGURE"]) + "\n"
    if not target.exists() or target.read_text(encoding="utf-8") != text:  # what is as before is not compiled again
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
