#!/usr/bin/env bash
# Everything that has to hold before a change lands: style, types, import directions, tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

require_system
# For the rdma backend, its networks, and guests with Soft-RoCE; where we may not install them, its tests skip.
if ! { [ -e /usr/include/ucp/api/ucp.h ] && [ -e /usr/include/infiniband/verbs.h ] &&
    command -v ip >/dev/null && command -v pkg-config >/dev/null; }; then
    (install_system_packages libucx-dev libibverbs-dev pkg-config iproute2) || true
fi
if [ "$(uname -sm)" = "Linux x86_64" ] && ! { command -v qemu-system-x86_64 && command -v busybox &&
    command -v cpio && command -v modprobe; } >/dev/null; then
    (install_system_packages qemu-system-x86 busybox-static cpio kmod) || true
fi
# For the pages of reports in a real browser; where we may not install it, their tests skip.
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
    (install_system_packages chromium) || true
fi
ns3=OFF
if [ "$(uname -sm)" = "Linux x86_64" ]; then
    ns3=ON  # stock ns-3 exists for this platform only; elsewhere its tests skip
fi
install_project -e '.[test]' --config-settings cmake.define.PD_NS3=$ns3 --config-settings cmake.define.PD_WERROR=ON
if [ -n "${CI:-}" ]; then
    # The profiler's harness runs on CPUs too, and searches on a cluster of Ray; elsewhere their tests skip without them.
    install_project torch==2.13.0 'ray>=2.9'
fi
export PATH="$PWD/.venv/bin:$PATH"

if [ "$ns3" = ON ]; then
    python -c 'from netsim.backends.ns3.extension import load_extension; load_extension()'  # a build that does not load must not look like a skip
fi
ruff check .
ruff format --check .
find aicb/core netsim/core vidur_pd/core -name '*.?pp' -print0 | xargs -0 clang-format --dry-run --Werror
mypy
lint-imports
scripts/words.sh
python -m pytest -n 2 --dist worksteal "$@"
