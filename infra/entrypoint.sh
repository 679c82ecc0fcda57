#!/usr/bin/env bash
# Entry point (PID 1) of a container. It forwards SIGTERM (spot interruption, terminated job) to the task, which ends; `finetune` saves first.
#
# Metaflow starts the task below a shell that forwards no signals. As PID 1 the shell would ignore SIGTERM; as a child it would die at once
# and end the container. So the shell gets no signal: when the task has ended, the shell saves the logs and ends too.
set -um  # -m: the command gets its own process group and does not ignore SIGINT.
[ $# -gt 0 ] || set -- bash

forward_signal() {
    [ -n "${!:-}" ] || exit 143  # The command has not started.
    is_interrupted=yes
    local folder pid key parent has_task=""
    local -A tasks=()
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        # A task is `python FLOW.py ... step NAME ...`; in the shell's command line `step` is part of a longer argument.
        if [ "$pid" != $$ ] && tr '\0' '\n' 2>/dev/null <"$folder/cmdline" | grep --quiet --line-regexp step; then
            tasks[$pid]=yes
        fi
    done
    for pid in "${!tasks[@]}"; do
        parent=""
        while read -r key parent && [ "$key" != PPid: ]; do :; done 2>/dev/null <"/proc/$pid/status"
        # Processes that a task forked have the task's command line; the task ends them itself.
        [ -n "${tasks[${parent:-none}]:-}" ] || { kill -TERM "$pid" 2>/dev/null && has_task=yes; }
    done
    # Without a running task nothing must be saved, so the command itself gets the signal.
    [ -n "$has_task" ] || kill -TERM -- "-$!" 2>/dev/null
}
trap forward_signal TERM INT  # PID 1 ignores a signal without a handler, so the handler comes before the command.
"$@" <&0 &
command=$!

is_interrupted=yes
while [ -n "$is_interrupted" ]; do
    is_interrupted=""
    wait "$command"
    status=$?
done
exit "$status"
