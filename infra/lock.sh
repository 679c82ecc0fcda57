#!/usr/bin/env bash
# Renew requirements.lock: every package that the project and its developers need, but torch and what only its CUDA build needs.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet uv
cp pyproject.toml "$work/"
(cd "$work" && venv/bin/uv lock --quiet && venv/bin/uv export --frozen --no-emit-project --prune torch --no-hashes --no-header --quiet) >requirements.lock
