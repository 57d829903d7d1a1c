#!/usr/bin/env bash
# Everything that has to hold before a change lands: style, types, import directions, tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

require_system
install_project -e '.[test]'
if [ -n "${CI:-}" ]; then
    install_project torch  # the profiler's harness runs on CPUs too; elsewhere its tests skip without torch
fi
export PATH="$PWD/.venv/bin:$PATH"

ruff check .
ruff format --check .
find netsim/core -name '*.?pp' -print0 | xargs -0 clang-format --dry-run --Werror
mypy
lint-imports
codespell
python -m pytest -n 2 --dist loadfile "$@"
