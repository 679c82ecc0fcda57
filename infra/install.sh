#!/usr/bin/env bash
# Creates a virtual environment and installs Stockfish, for `make` and (with --image) for infra/Dockerfile.
# Usage: infra/install.sh VENV [--dev | --image]
#   (no option): the packages that a run needs, and the project.
#   --dev: also the tools of `make test`.
#   --image: only the steps' dependencies, and exactly the Stockfish of infra/stockfish.sha256.
# PYTHON: the Python to use; default: the newest installed Python that is supported.
# TORCH_INDEX: torch's package index; default: the index of the CPU builds on a machine without GPU (CUDA takes gigabytes), then pip's own.
set -euo pipefail
cd "$(dirname "$0")/.."
stockfish_version=15.1-4
venv="" is_image="" is_dev=""
fail() { echo "install: $*" >&2 && exit 1; }
for word in "$@"; do
    case $word in
        --dev) is_dev=yes ;;
        --image) is_image=yes ;;
        -*) fail "$word is not an option of infra/install.sh" ;;
        *) venv=$word ;;
    esac
done
: "${venv:?usage: infra/install.sh VENV [--dev | --image]}"
supported="3.13 3.12 3.11"

from_debian() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "install: $1 from Debian"
    local install="apt-get install --yes --quiet --no-install-recommends $1"
    $install >/dev/null 2>&1 || { apt-get update --quiet >/dev/null && $install >/dev/null; }
}

# Stockfish comes first, so its problems show before minutes of downloads.
if [ -n "$is_image" ]; then
    [ -x /usr/games/stockfish ] || from_debian "stockfish=$stockfish_version" ||
        fail "an image needs Debian's package stockfish $stockfish_version, so build it as root on Debian"
    sha256sum --check --strict --quiet infra/stockfish.sha256 ||
        fail "/usr/games/stockfish is not the one that infra/stockfish.sha256 knows (Debian 12, amd64, $stockfish_version), so its values" \
            "would differ from other machines' values; build on the base image that the Dockerfile names, for linux/amd64"
elif [ -z "${CHESS_GRPO_STOCKFISH:-}" ] && ! command -v stockfish >/dev/null && [ ! -x /usr/games/stockfish ]; then
    from_debian stockfish ||
        fail "Stockfish is not installed; install it (sudo apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to its path"
fi

# The stamp is a hash of everything that was installed, and of the checkout's path, which scripts contain: a second call is fast, and a
# changed lock or a moved checkout is noticed.
stamp="$venv/installed"
lock=requirements-run.lock
[ -z "$is_dev" ] || lock=requirements.lock
hash_of() { cat pyproject.toml requirements*.lock infra/install.sh - <<<"$1 ${TORCH_INDEX:-} $(pwd -P)" | sha256sum; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
# Whether the environment's packages are for this Python. The environment's own may be a dead link, or newer since an upgrade.
serves() { local version && version=$(version_of "$1") && [ -d "$venv/lib/python$version" ]; }
# An environment keeps its Python unless PYTHON names another. An environment with --dev also serves a call without it.
if [ -f "$stamp" ] && serves "$venv/bin/python" && serves "${PYTHON:-$venv/bin/python}"; then
    case $(cat "$stamp") in
        "$(hash_of "$lock")") exit 0 ;;
        "$(hash_of requirements.lock)") [ -n "$is_image" ] || exit 0 ;;
    esac
fi

# A Python on the path may fail: pyenv's `python3.13` without an active 3.13, or Debian's without python3-venv, which has ensurepip.
runs() { "$1" -c "import ensurepip, venv" >/dev/null 2>&1; }
# Prints the newest installed Python. Without one, uv (https://docs.astral.sh/uv) installs one into uv's own folder.
find_python() {
    local version
    for version in $supported; do
        runs "python$version" && echo "python$version" && return
    done
    command -v uv >/dev/null || return 1
    uv python install --quiet "${supported%% *}" >&2 && uv python find --no-project --managed-python "${supported%% *}"
}
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=$(find_python) || fail "no Python of $supported is installed, and uv did not install one; install one (Debian 12: apt-get" \
        "install python3.11 python3.11-venv) or uv (https://docs.astral.sh/uv/getting-started/installation), or name one: make PYTHON=..."
fi
runs "$python" || fail "$python does not run, or has no venv or ensurepip (Debian: apt-get install python3-venv); name another: make PYTHON=..."
version=$(version_of "$python")
[[ " $supported " == *" $version "* ]] || fail "$python is Python $version, but the locked packages are for $supported; leave PYTHON out"

pip() { "$venv/bin/python" -m pip "$@"; }
torch=$(grep -o 'torch==[0-9.]*' pyproject.toml)
# --quiet twice: pip would warn for each package if an index does not answer. A missing file is an error anyway, by the hashes below.
options=(--quiet --quiet --disable-pip-version-check)
echo "install: $(grep -c '^[a-z0-9].*==' "$lock") Python packages (0.9 GiB) and $torch (0.7 GiB; with CUDA 5 GiB and more) into" \
    "$venv, once; takes 1 to 5 minutes"
# Prints a line every 20 seconds. `read` waits without a child process, which would outlive this script and hold its output open.
while ! read -rt 20 _ <> <(:); do echo "install: $(du -sm "$venv" 2>/dev/null | cut -f 1) MiB are installed"; done &
work="$venv/installing"
trap 'kill $! 2>/dev/null; rm -rf "$work"' EXIT
# An image takes wheels only: no build script runs as root, and no compiler is needed. python-chess has no wheel.
[ -z "$is_image" ] || options+=(--no-cache-dir --only-binary=:all: --no-binary=chess)
rm -f "$stamp"
# An environment with another Python, or made elsewhere, is created anew. pyvenv.cfg ends with the place.
clear=""
if [ -f "$venv/pyvenv.cfg" ]; then
    { serves "$python" && serves "$venv/bin/python" && [[ $(<"$venv/pyvenv.cfg") == *" $(cd "$venv" && pwd -P)" ]]; } || clear=--clear
fi
"$python" -m venv $clear "$venv"

# uv takes a tenth of pip's time; pip gets it for this script only. In an image pip installs, because it also writes the bytecode, which the
# image's user cannot write.
uv=""
if [ -z "$is_image" ] && ! uv=$(command -v uv); then
    export UV_CACHE_DIR="$work/cache"
    pip install "${options[@]}" --require-hashes --target "$work" --requirement requirements-uv.lock 2>/dev/null && uv="$work/bin/uv" || true
fi
# Prints a setting of pip (variable or file), because uv does not read them.
pip_settings=$(pip config list)
setting() { sed -n "/\.$1='/{s/^[^']*'\(.*\)'$/\1/;s/\\\\n/ /g;p;q;}" <<<"$pip_settings"; }
export UV_SYSTEM_CERTS=1 UV_INDEX_STRATEGY=unsafe-best-match UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$(setting index-url)}
export UV_INDEX=${UV_INDEX:-$(setting extra-index-url)} UV_FIND_LINKS=${UV_FIND_LINKS:-$(setting find-links | tr ' ' ,)}
# If uv fails, pip installs or says why not.
add() { { [ -n "$uv" ] && "$uv" pip install --quiet --python "$venv/bin/python" "$@" 2>/dev/null; } || pip install "${options[@]}" "$@"; }
# Every file has a hash. The lock names all packages except torch and torch's own dependencies, so nothing is resolved.
add --require-hashes --no-deps --requirement "$lock"
echo "install: the packages are installed; $torch is next"
# torch has a version and no hash, because its builds differ: a machine whose pip is configured for a CPU wheel gets that wheel.
get_torch() { pip download "${options[@]}" --no-deps --dest "$work/torch" "$@" "$torch"; }
if [ -n "${TORCH_INDEX:-}" ]; then
    get_torch --index-url "$TORCH_INDEX"
elif [ -n "$is_image" ] || [ "$(uname -sm)" != "Linux x86_64" ] || nvidia-smi -L >/dev/null 2>&1; then
    get_torch
else
    # One attempt: if this index does not answer, pip's own index has torch too.
    get_torch --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu 2>/dev/null || get_torch
fi
add --no-deps --no-index --find-links "$work/torch" "$torch"
add --constraint requirements-torch.lock "$torch"
# `compat` writes a path; the default is a module that each Python process would import.
[ -n "$is_image" ] || add --no-deps --editable . --config-settings editable_mode=compat
# Python writes bytecode when it first imports a module, unless this variable is set.
[ -z "$uv" ] || [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || "$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" || true
pip check >/dev/null || { pip check >&2; exit 1; }
# The preflight compares this hash with the lock that versions of steps contain (steps/run/versions.py).
sha256sum requirements-run.lock | cut -d ' ' -f 1 >"$venv/run-lock"
hash_of "$lock" >"$stamp"
