#!/usr/bin/env bash
# Create a virtual environment and install Stockfish: for `make` and, with --image, for the images (infra/Dockerfile).
# Usage: infra/install.sh VENV [--dev | --image]
#   --dev: also the tools of `make test`; without it what a run needs.
#   --image: only the steps' dependencies, without the project's code, and exactly the Stockfish of infra/stockfish.sha256.
# PYTHON: the Python to use; by default the newest supported one that is there.
# TORCH_INDEX: the package index of torch; by default that of its CPU builds where no GPU is (else gigabytes of CUDA come), then pip's own.
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

# Run it: pyenv has a `python3.13` on the path that fails where no 3.13 is active; Debian's Python has no ensurepip without python3-venv.
runs() { "$1" -c "import ensurepip, venv" >/dev/null 2>&1; }
# The newest that is there; where there is none, by uv, if it is there (https://docs.astral.sh/uv), into its own folder.
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
    python=$(find_python) || fail "no Python of $supported is there, and uv did not get one; install one (Debian 12: apt-get install" \
        "python3.11 python3.11-venv) or uv (https://docs.astral.sh/uv/getting-started/installation), or name one: make PYTHON=..."
fi
runs "$python" || fail "$python does not run, or lacks venv or ensurepip (Debian: apt-get install python3-venv); name another: make PYTHON=..."
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ " $supported " == *" $version "* ]] || fail "$python is Python $version, and the locked packages are for $supported; leave PYTHON out"

# Stockfish first, so that its problems show before minutes of downloads.
if [ -n "$is_image" ]; then
    [ -x /usr/games/stockfish ] || from_debian "stockfish=$stockfish_version" ||
        fail "an image is built by root on Debian, for its package stockfish $stockfish_version; here is neither"
    sha256sum --check --strict --quiet infra/stockfish.sha256 ||
        fail "/usr/games/stockfish is not the one that infra/stockfish.sha256 knows (Debian 12, amd64, $stockfish_version): values would" \
            "differ from those of other machines; build on the base image that the Dockerfile names, for linux/amd64"
elif [ -z "${CHESS_GRPO_STOCKFISH:-}" ] && ! command -v stockfish >/dev/null && [ ! -x /usr/games/stockfish ]; then
    from_debian stockfish ||
        fail "Stockfish is not there; install it (sudo apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to its path"
fi

# The stamp is a hash of what was installed, so that a second call is fast and a changed lock is noticed. The tools include all else.
stamp="$venv/installed"
lock=requirements-run.lock
[ -z "$is_dev" ] || lock=requirements.lock
hash_of() { cat pyproject.toml requirements*.lock infra/install.sh - <<<"$1 ${TORCH_INDEX:-}" | sha256sum; }
# An environment stays on its Python unless another is named.
if [ -f "$stamp" ] && { [ -z "${PYTHON:-}" ] || [ -d "$venv/lib/python$version" ]; }; then
    case $(cat "$stamp") in
        "$(hash_of "$lock")") exit 0 ;;
        "$(hash_of requirements.lock)") [ -n "$is_image" ] || exit 0 ;;
    esac
fi

pip() { "$venv/bin/python" -m pip "$@"; }
torch=$(grep -o 'torch==[0-9.]*' pyproject.toml)
# Twice quiet: pip warns once a package of an index that is away, and with the hashes below a missing file is an error in any case.
options=(--quiet --quiet --disable-pip-version-check)
echo "install: $(grep -c '^[a-z0-9].*==' "$lock") Python packages (1.5 GiB unpacked) and $torch (0.8 GiB; with CUDA 5 GiB and more) into" \
    "$venv, once; takes 2 to 10 minutes"
# A line every 20 seconds, without a child process that would outlive this one and hold its output open.
while ! read -rt 20 _ <> <(:); do echo "install: $(du -sm "$venv" 2>/dev/null | cut -f 1) MiB are there"; done &
trap "kill $! 2>/dev/null" EXIT
# Wheels only, so that no package's build script runs as root and no compiler is needed; python-chess has no wheel.
[ -z "$is_image" ] || options+=(--no-cache-dir --only-binary=:all: --no-binary=chess)
rm -f "$stamp"
# An environment of another Python is made anew.
clear=""
[ ! -f "$venv/pyvenv.cfg" ] || [ -d "$venv/lib/python$version" ] || clear=--clear
"$python" -m venv $clear "$venv"
# Every file by its hash. The lock names all packages but torch and what torch alone needs, so nothing is resolved. uv is faster, where it is there;
# pip knows indexes that the machine names for pip alone.
uv pip install --quiet --python "$venv/bin/python" --require-hashes --no-deps --requirement "$lock" 2>/dev/null ||
    pip install "${options[@]}" --require-hashes --no-deps --requirement "$lock"
echo "install: the packages are there; $torch is next"
# torch by its version, because its builds differ: a machine whose pip is configured for a CPU wheel gets that one.
if [ -n "${TORCH_INDEX:-}" ]; then
    pip install "${options[@]}" --no-deps --index-url "$TORCH_INDEX" "$torch"
elif [ -z "$is_image" ] && [ "$(uname -sm)" = "Linux x86_64" ] && ! nvidia-smi -L >/dev/null 2>&1; then
    # One try: where that index is out of reach, pip's own has torch too.
    pip install "${options[@]}" --no-deps --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu "$torch" 2>/dev/null || true
fi
pip install "${options[@]}" --constraint requirements-torch.lock "$torch"
[ -n "$is_image" ] || pip install "${options[@]}" --no-deps --editable .
pip check >/dev/null || { pip check >&2; exit 1; }
# Record the hash of the lock file, for comparison with that in versions of steps (steps/run/versions.py).
sha256sum requirements-run.lock | cut -d ' ' -f 1 >"$venv/run-lock"
hash_of "$lock" >"$stamp"
