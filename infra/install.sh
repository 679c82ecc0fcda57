#!/usr/bin/env bash
# Make the virtual environment and make sure of Stockfish. Used by `make`, and meant for an image as well.
# Usage: infra/install.sh VENV [--second-engine]: with Debian's Fairy-Stockfish too, on which the tests check that any UCI engine will do.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: infra/install.sh VENV [--second-engine]}
python=${PYTHON:-python3.11}

if ! command -v "$python" >/dev/null; then
    echo "install: $python is not there; install Python 3.11 (apt-get install python3.11 python3.11-venv), or name one: make PYTHON=..." >&2
    exit 1
fi

# The stamp holds what was installed, so that a second call costs nothing and a changed lock is noticed.
stamp="$venv/installed"
wanted=$(cat pyproject.toml requirements.lock infra/install.sh | sha256sum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    "$python" -m venv "$venv"
    # torch first and by itself: a machine that has a CPU wheel set up for pip gets that one, and nothing after it asks for another.
    "$venv/bin/python" -m pip install --quiet "$(grep -o 'torch==[0-9.]*' pyproject.toml)"
    "$venv/bin/python" -m pip install --quiet --requirement requirements.lock
    "$venv/bin/python" -m pip install --quiet --no-deps --editable .
    echo "$wanted" >"$stamp"
fi

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
from_debian() {
    echo "install: $1 from Debian"
    apt-get install --yes --quiet "$1" >/dev/null 2>&1 || { apt-get update --quiet >/dev/null && apt-get install --yes --quiet "$1" >/dev/null; }
}

engine=${CHESS_GRPO_STOCKFISH:-}
if [ -z "$engine" ] && ! command -v stockfish >/dev/null && [ ! -x /usr/games/stockfish ]; then
    if can_apt; then
        from_debian stockfish
    else
        echo "install: Stockfish is not there; install it (sudo apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to its path" >&2
        exit 1
    fi
fi
# Its tests are skipped, aloud, where it cannot be had.
if [ "${2:-}" = --second-engine ] && [ ! -x /usr/games/fairy-stockfish ] && can_apt; then
    from_debian fairy-stockfish
fi
