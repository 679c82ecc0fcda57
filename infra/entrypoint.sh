#!/usr/bin/env bash
# The first process of a container: hands SIGTERM (a spot machine is taken back, a job is ended) to the task, which then saves its work and ends.
# Metaflow starts the task below a shell of its own, which hands on nothing: as first process of a container it does not even hear the signal,
# as a child it dies at once and the container with it. So the shell is left alone; once the task has ended it keeps the logs and ends too.
set -um  # -m: the command gets a process group of its own, and hears Ctrl-C.
[ $# -gt 0 ] || set -- bash
"$@" <&0 &
command=$!

hand_on() {
    is_interrupted=yes
    local folder pid key parent has_task=""
    local -A tasks=()
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        # `python FLOW.py ... step NAME ...`: the word stands alone only in the command line of a task, not in that of a shell around it.
        if [ "$pid" != $$ ] && tr '\0' '\n' 2>/dev/null <"$folder/cmdline" | grep --quiet --line-regexp step; then
            tasks[$pid]=yes
        fi
    done
    for pid in "${!tasks[@]}"; do
        parent=""
        while read -r key parent && [ "$key" != PPid: ]; do :; done 2>/dev/null <"/proc/$pid/status"
        # What a task has forked looks like it, and is the task's own to end.
        [ -n "${tasks[${parent:-none}]:-}" ] || { kill -TERM "$pid" 2>/dev/null && has_task=yes; }
    done
    # Before and after the task there is nothing to save.
    [ -n "$has_task" ] || kill -TERM -- "-$command" 2>/dev/null
}
trap hand_on TERM INT

is_interrupted=yes
while [ -n "$is_interrupted" ]; do
    is_interrupted=""
    wait "$command"
    status=$?
done
exit "$status"
