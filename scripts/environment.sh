# Sets up .venv with the project built in it. Sourced by quickstart.sh and test.sh from the repository root.
#
# Needs Python >= 3.11 with headers and venv, git and a C++20 compiler. What is missing is installed through apt where
# this is Debian or Ubuntu and we may; cmake, ninja and every library come as Python packages.

PYTHON="${PYTHON:-python3}"

install_system_packages() {  # PACKAGE...
    local as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        as_root="sudo -n"
    fi
    if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! $as_root true 2>/dev/null; }; then
        echo "Please install: $*" >&2
        exit 1
    fi
    $as_root apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

require_system() {
    local missing=()
    command -v "$PYTHON" >/dev/null || missing+=(python3)
    command -v g++ >/dev/null || command -v c++ >/dev/null || missing+=(g++)
    if command -v "$PYTHON" >/dev/null; then
        "$PYTHON" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
        "$PYTHON" -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' \
            2>/dev/null || missing+=(python3-dev)
    fi
    if [ "${#missing[@]}" -gt 0 ]; then
        install_system_packages "${missing[@]}"
    fi
    if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "Python >= 3.11 is needed; found $("$PYTHON" --version). Set PYTHON to a newer one." >&2
        exit 1
    fi
}

install_project() {  # what to install, for example . or -e .[test]
    if [ ! -x .venv/bin/python ]; then
        "$PYTHON" -m venv .venv
    fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}
