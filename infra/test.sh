#!/usr/bin/env bash
# All tests, in two processes side by side: whole flows spend their time waiting for the starts of their tasks, and Metaflow, once imported,
# breaks late imports of others. Takes the environment's python.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m pytest tests/flows >"$log" 2>&1 &
flows=$!
"$python" -m pytest tests/data_checks tests/grpo tests/steps tests/infra
others_status=$?
wait "$flows"
flows_status=$?
cat "$log"
exit $((others_status > flows_status ? others_status : flows_status))
