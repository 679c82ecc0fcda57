#!/usr/bin/env bash
# Create a virtual environment and install Stockfish: for `make` and, with --image, for the images (infra/Dockerfile, infra/Dockerfile.cpu).
# Usage: infra/install.sh VENV [--image [--language]] [--second-engine] [--browser]
#   --image: only the steps' dependencies, without the project's code, and exactly the Stockfish of infra/stockfish.sha256.
#   --language: also the packages for language models; without --image they are always installed.
#   --second-engine: also Debian's Fairy-Stockfish, with which the tests check that any UCI engine works.
#   --browser: also Debian's Chromium and its driver, with which the tests open the MLflow UI and the cards.
# TORCH_INDEX: the package index of torch (such as its CPU builds); by default pip's own index.
set -euo pipefail
cd "$(dirname "$0")/.."
stockfish_version=15.1-4
venv="" is_image="" with_language="" with_second_engine="" with_browser=""
for word in "$@"; do
    case $word in
        --image) is_image=yes ;;
        --language) with_language=yes ;;
        --second-engine) with_second_engine=yes ;;
        --browser) with_browser=yes ;;
        -*) echo "install: $word is not an option of infra/install.sh" >&2 && exit 2 ;;
        *) venv=$word ;;
    esac
done
: "${venv:?usage: infra/install.sh VENV [--image [--language]] [--second-engine] [--browser]}"
python=${PYTHON:-python3.11}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
from_debian() {
    echo "install: $1 from Debian"
    local install="apt-get install --yes --quiet --no-install-recommends $1"
    $install >/dev/null 2>&1 || { apt-get update --quiet >/dev/null && $install >/dev/null; }
}

# Python 3.11 by uv (https://docs.astral.sh/uv), where the system has none: Ubuntu 24.04, Debian 13, macOS, Colab.
python_by_uv() {
    local uv
    if ! uv=$(command -v uv); then
        # Beside the environment, and into no other: systems refuse to let pip change theirs.
        python3 -m pip install --quiet --disable-pip-version-check --target "$venv.uv" uv >/dev/null 2>&1 || return 1
        uv=$venv.uv/bin/uv
    fi
    echo "install: Python 3.11 by $uv, into its own folder" >&2
    "$uv" python install --quiet 3.11 >&2 && "$uv" python find --no-project --managed-python 3.11
}

if ! command -v "$python" >/dev/null; then
    if [ -n "${PYTHON:-}" ] && [ "$PYTHON" != python3.11 ]; then
        echo "install: PYTHON=$PYTHON is not there; name a Python 3.11, or leave it out" >&2
        exit 1
    fi
    if [ -n "$is_image" ] || ! python=$(python_by_uv); then
        echo "install: python3.11 is not there, and uv did not get it; install Python 3.11 (Debian 12: apt-get install python3.11" \
            "python3.11-venv) or uv (https://docs.astral.sh/uv/getting-started/installation), or name one: make PYTHON=..." >&2
        exit 1
    fi
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" != 3.11 ]; then
    echo "install: $python is Python $version, and the locked packages are for 3.11; leave PYTHON out, or name a Python 3.11" >&2
    exit 1
fi

# Stockfish first, so that its problems show before minutes of downloads.
if [ -n "$is_image" ]; then
    if [ ! -x /usr/games/stockfish ]; then
        if ! can_apt; then
            echo "install: an image is built by root on Debian, for its package stockfish $stockfish_version; here is neither" >&2
            exit 1
        fi
        from_debian "stockfish=$stockfish_version"
    fi
    if ! sha256sum --check --strict --quiet infra/stockfish.sha256; then
        echo "install: /usr/games/stockfish is not the one that infra/stockfish.sha256 knows (Debian 12, amd64, $stockfish_version): values would" \
            "differ from those of other machines; build on the base image that the Dockerfile names, for linux/amd64" >&2
        exit 1
    fi
elif [ -z "${CHESS_GRPO_STOCKFISH:-}" ] && ! command -v stockfish >/dev/null && [ ! -x /usr/games/stockfish ]; then
    if ! can_apt; then
        echo "install: Stockfish is not there; install it (sudo apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to its path" >&2
        exit 1
    fi
    from_debian stockfish
fi
# Its tests are skipped, with a message, where it is not available.
if [ -n "$with_second_engine" ] && [ ! -x /usr/games/fairy-stockfish ] && can_apt; then
    from_debian fairy-stockfish
fi
if [ -n "$with_browser" ] && { [ ! -x /usr/bin/chromium ] || [ ! -x /usr/bin/chromedriver ]; } && can_apt; then
    from_debian "chromium chromium-driver"
fi

# The stamp is a hash of what was installed, so that a second call is fast and a changed lock is noticed.
stamp="$venv/installed"
lock=requirements.lock
if [ -n "$is_image" ]; then
    lock=$([ -n "$with_language" ] && echo requirements-language.lock || echo requirements-run.lock)
fi
wanted=$(cat pyproject.toml "$lock" requirements-run.lock requirements-language.lock requirements-torch.lock infra/install.sh - <<<"${TORCH_INDEX:-}" | sha256sum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    pip() { "$venv/bin/python" -m pip "$@"; }
    torch=$(grep -o 'torch==[0-9.]*' pyproject.toml)
    # Twice quiet: pip warns once a package of an index that is away, and with the hashes below a missing file is an error in any case.
    options=(--quiet --quiet --disable-pip-version-check)
    echo "install: $(grep -c '^[a-z0-9].*==' "$lock") Python packages and $torch into $venv, once"
    echo "install: takes 2 to 10 minutes"
    # A line a minute. The sleep holds no output open: a pipe's reader would wait for it.
    while sleep 60 >/dev/null 2>&1; do echo "install: $(du -sh "$venv" | cut -f 1) so far"; done &
    progress=$!
    disown
    trap 'kill "$progress" 2>/dev/null' EXIT
    if [ -n "$is_image" ]; then
        # Wheels only, so that no package's build script runs as root and no compiler is needed; python-chess has no wheel.
        options+=(--no-cache-dir --only-binary=:all: --no-binary=chess)
    fi
    rm -f "$stamp"
    "$python" -m venv "$venv"
    # Every file by its hash. The lock names all packages but torch and what torch alone needs, so nothing is resolved.
    pip install "${options[@]}" --require-hashes --no-deps --requirement "$lock"
    # torch by its version, because its builds differ: a machine whose pip is configured for a CPU wheel gets that one.
    if [ -n "${TORCH_INDEX:-}" ]; then
        pip install "${options[@]}" --no-deps --index-url "$TORCH_INDEX" "$torch"
    fi
    pip install "${options[@]}" --constraint requirements-torch.lock "$torch"
    if [ -z "$is_image" ]; then
        pip install "${options[@]}" --no-deps --editable .
    fi
    pip check >/dev/null || { pip check >&2; exit 1; }
    # Record the hashes of the lock files, for comparison with those in versions of steps (steps/store/versions.py).
    sha256sum requirements-run.lock | cut -d ' ' -f 1 >"$venv/run-lock"
    if [ "$lock" != requirements-run.lock ]; then
        sha256sum requirements-language.lock | cut -d ' ' -f 1 >"$venv/language-lock"
    fi
    kill "$progress"
    trap - EXIT
    echo "$wanted" >"$stamp"
fi
