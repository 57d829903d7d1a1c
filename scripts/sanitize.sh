#!/usr/bin/env bash
# The C++ cores under AddressSanitizer and UndefinedBehaviorSanitizer: SEEDS random configurations over all backends and
# couplings (40), the examples, and MINUTES of the fuzzer (1) for each kind that reaches netsim. Every report is an error.
#
# Builds into build/sanitize and works on a copy of the tree there, so the ordinary build stays. Needs what test.sh has
# set up, and cmake, ninja and pybind11.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seeds="${1:-40}"
minutes="${2:-1}"
built="$PWD/build/sanitize"
tree="$built/tree"
python="$built/.venv/bin/python"

ns3=OFF
if [ "$(uname -sm)" = "Linux x86_64" ]; then
    ns3=ON
fi
cmake -S . -B "$built" -G Ninja -DPD_SANITIZE=ON -DPD_WERROR=ON -DPD_NS3=$ns3 -DPython_EXECUTABLE="$PWD/.venv/bin/python" \
    -Dpybind11_DIR="$(.venv/bin/python -m pybind11 --cmakedir)"
cmake --build "$built"
rm -rf "$tree" "$built/.venv" "$built/results" "$built"/report.*
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree"
cmake --install "$built" --prefix "$tree" >/dev/null

# An environment that sees the copy instead of this tree, in child processes too.
.venv/bin/python -m venv --without-pip "$built/.venv"
.venv/bin/python -c 'import sys; print(*sys.argv[1:], *sys.path[1:], sep="\n")' "$tree" | grep -vxF "$PWD" \
    >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/tree.pth"
cd "$tree"

# The C++ library has to be there when the sanitizer looks for what it intercepts.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:log_path=$built/report"
export UBSAN_OPTIONS="print_stacktrace=1"
export PYTHONMALLOC=malloc

check() {
    "$python" -c 'import netsim._core as core; assert "build/sanitize" in core.__file__, core.__file__'
    "$python" -m tests.integration.write_results "$built/results" $(seq 0 $((seeds - 1)))
    grep -l '^cluster:' examples/*.yaml | while read -r example; do
        "$python" -m vidur_pd run "$example" -o "$built/results/$(basename "$example" .yaml)"
    done
    "$python" -m tests.fuzz --kind flows --kind topologies --kind collectives --minutes "$minutes"
}
set +e  # "check ||" would keep the checks from stopping at the first that fails
(set -e; check) 2>&1 | tee "$built/log"
status=$?
set -e
unset LD_PRELOAD

# AddressSanitizer writes files, the other one where the program writes its errors, which the fuzzer quotes.
reports="$(cat "$built"/report.* 2>/dev/null || true; grep 'runtime error: ' "$built/log" || true)"
if [ -n "$reports" ]; then
    echo "$reports"
    status=1
fi
exit "$status"
