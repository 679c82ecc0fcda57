#!/usr/bin/env bash
# Renew the locks. requirements.lock: every package that the project and its developers need; requirements-run.lock: those of them that the steps
# need, and so the images; requirements-language.lock: those and what a language model as the policy needs; all without torch and what only torch
# needs, which requirements-torch.lock pins for whichever build of torch comes.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet uv
cp pyproject.toml "$work/"
export_lock() { (cd "$work" && venv/bin/uv export --frozen --no-emit-project --no-hashes --no-header --quiet "$@"); }
(cd "$work" && venv/bin/uv lock --quiet)
export_lock --all-extras --prune torch >"$work/all"
export_lock --no-dev --prune torch >"$work/run"
export_lock --no-dev --extra language --prune torch >"$work/language"
export_lock --no-dev --no-annotate --prune torch | sort >"$work/without-torch"
export_lock --no-dev --no-annotate | sort | comm -13 "$work/without-torch" - >"$work/torch"
# Only now, so that a failure leaves the four as they were, and of one age.
mv "$work/all" requirements.lock
mv "$work/run" requirements-run.lock
mv "$work/language" requirements-language.lock
mv "$work/torch" requirements-torch.lock
