#!/usr/bin/env bash
# Run all tests in three parallel processes: whole flows wait for their tasks to start, engine tests wait for deadlines, and Metaflow, once
# imported, breaks late imports of other tests. The argument is the environment's python.
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
