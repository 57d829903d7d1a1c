#!/usr/bin/env bash
# From an empty machine to a report: sets up .venv, builds, and simulates DeepSeek-V3 on prefill and decode pools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

require_system
echo "Setting up .venv and building (a few minutes the first time) ..."
install_project -e .
.venv/bin/vidur-pd run examples/deepseek-v3-pd.yaml -o out/quickstart "$@"
