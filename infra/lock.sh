#!/usr/bin/env bash
# Updates the lock files.
#   requirements.lock: all packages, including the development tools.
#   requirements-run.lock: the dependencies of steps and images.
#   requirements-torch.lock: torch and its own dependencies, which the other two leave out. It fits every build of torch, so it has no hashes.
#   requirements-uv.lock: uv, with which infra/install.sh installs the others.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export UV_SYSTEM_CERTS=1
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet uv
cp pyproject.toml "$work/"
export_lock() { (cd "$work" && venv/bin/uv export --frozen --no-emit-project --no-header --quiet "$@"); }
(cd "$work" && venv/bin/uv lock --quiet)
export_lock --prune torch >"$work/all"
export_lock --no-dev --prune torch >"$work/run"
export_lock --only-group install --no-annotate >"$work/uv"
export_lock --no-dev --no-hashes --no-annotate --prune torch | sort >"$work/without-torch"
export_lock --no-dev --no-hashes --no-annotate | sort | comm -13 "$work/without-torch" - >"$work/torch"
# The files are moved at the end: after a failure all are still the old ones.
mv "$work/all" requirements.lock
mv "$work/run" requirements-run.lock
mv "$work/torch" requirements-torch.lock
mv "$work/uv" requirements-uv.lock
