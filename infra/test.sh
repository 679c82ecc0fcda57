#!/usr/bin/env bash
# All tests, in three processes side by side: whole flows wait for the starts of their tasks, tests of engines for deadlines, and Metaflow,
# once imported, breaks late imports of others. Takes the environment's python.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
groups=("tests/flows" "tests/data_checks tests/docs tests/infra tests/steps" "tests/grpo")
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
processes=()
for group in "${groups[@]}"; do
    # shellcheck disable=SC2086  # A group is several words.
    "$python" -m pytest $group >"$logs/${#processes[@]}" 2>&1 &
    processes+=($!)
done
status=0
for number in "${!processes[@]}"; do
    wait "${processes[$number]}" || status=1
    cat "$logs/$number"
done
exit $status
