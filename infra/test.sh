#!/usr/bin/env bash
# Run all tests, in groups at the same time: whole flows wait for their tasks to start, engine tests wait for deadlines, and Metaflow, once
# imported, breaks late imports of other tests. More groups than cores, so that no core waits while one group does. The flows, which take
# longest, go before the others, but by a little: at niceness 10, one busy process beside the suite takes a core from these others. The
# arguments are the environment's python and, for `make prove`, the mark of its tests.
set -uo pipefail
cd "$(dirname "$0")/.."
groups=(tests/flows tests/grpo "tests/steps/bodies tests/steps/cli" "tests/steps --ignore=tests/steps/bodies --ignore=tests/steps/cli"
    "tests/data_checks tests/docs tests/infra")
language=tests/proofs/test_language_proofs.py  # The longest of all, on one core.
[ "${2:-}" = prove ] && groups=("$language" "tests/proofs --ignore=$language" "${groups[@]}")
run() {
    local log status=0 niceness=5
    [ "$3" = tests/flows ] && niceness=0
    log=$(mktemp)
    # shellcheck disable=SC2086  # A group is several words.
    nice -n "$niceness" "$1" -m pytest $3 ${2:+-m "$2"} >"$log" 2>&1 || status=1
    cat "$log"
    rm -f "$log"
    return $status
}
export -f run
printf '%s\0' "${groups[@]}" | xargs -0 -P "${#groups[@]}" -I GROUP bash -c 'run "$@"' _ "$1" "${2:-}" GROUP
