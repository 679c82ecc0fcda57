#!/usr/bin/env bash
# Make an environment and make sure of Stockfish: for `make`, and, with --image, for the images (infra/Dockerfile, infra/Dockerfile.cpu).
# Usage: infra/install.sh VENV [--image [--language]] [--second-engine] [--browser]
#   --image: only what the steps need, without the project's own code, and the one Stockfish that infra/stockfish.sha256 knows.
#   --language: what a language model as the policy needs too; without --image it is there anyway.
#   --second-engine: Debian's Fairy-Stockfish too, on which the tests check that any UCI engine will do.
#   --browser: Debian's Chromium and its driver too, with which the tests look at the MLflow UI and the cards.
# TORCH_INDEX: an index to take torch from (its CPU build, say); without it torch comes from where pip looks anyway.
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
        -*) echo "install: $word is no option of infra/install.sh" >&2 && exit 2 ;;
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

if ! command -v "$python" >/dev/null; then
    echo "install: $python is not there; install Python 3.11 (apt-get install python3.11 python3.11-venv), or name one: make PYTHON=..." >&2
    exit 1
fi

# Stockfish first: what is wrong with it shows before minutes of downloads.
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
# Its tests are skipped, aloud, where it cannot be had.
if [ -n "$with_second_engine" ] && [ ! -x /usr/games/fairy-stockfish ] && can_apt; then
    from_debian fairy-stockfish
fi
if [ -n "$with_browser" ] && { [ ! -x /usr/bin/chromium ] || [ ! -x /usr/bin/chromedriver ]; } && can_apt; then
    from_debian "chromium chromium-driver"
fi

# The stamp holds what was installed, so that a second call costs nothing and a changed lock is noticed.
stamp="$venv/installed"
lock=requirements.lock
if [ -n "$is_image" ]; then
    lock=$([ -n "$with_language" ] && echo requirements-language.lock || echo requirements-run.lock)
fi
wanted=$(cat pyproject.toml "$lock" requirements-run.lock requirements-language.lock requirements-torch.lock infra/install.sh - <<<"${TORCH_INDEX:-}" | sha256sum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    pip() { "$venv/bin/python" -m pip "$@"; }
    torch=$(grep -o 'torch==[0-9.]*' pyproject.toml)
    options=(--quiet --disable-pip-version-check)
    if [ -n "$is_image" ]; then
        # Wheels alone, so that no package's own script runs as root and no compiler is needed; python-chess comes as source only.
        options+=(--no-cache-dir --only-binary=:all: --no-binary=chess)
    fi
    rm -f "$stamp"
    "$python" -m venv "$venv"
    if [ -n "${TORCH_INDEX:-}" ]; then
        pip install "${options[@]}" --no-deps --index-url "$TORCH_INDEX" "$torch"
    fi
    # torch before the rest: a machine that has a CPU wheel set up for pip gets that one, and nothing after it asks for another.
    pip install "${options[@]}" --constraint requirements-torch.lock --constraint "$lock" "$torch"
    pip install "${options[@]}" --constraint requirements-torch.lock --requirement "$lock"
    if [ -z "$is_image" ]; then
        pip install --quiet --no-deps --editable .
    fi
    pip check >/dev/null || { pip check >&2; exit 1; }
    # Which packages these are, for whoever compares them with what a step's version says (steps/store/versions.py).
    sha256sum requirements-run.lock | cut -d ' ' -f 1 >"$venv/run-lock"
    if [ "$lock" != requirements-run.lock ]; then
        sha256sum requirements-language.lock | cut -d ' ' -f 1 >"$venv/language-lock"
    fi
    echo "$wanted" >"$stamp"
fi
