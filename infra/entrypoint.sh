#!/usr/bin/env bash
# The entry point (PID 1) of a container: forwards SIGTERM (spot interruption, or a terminated job) to the task, which saves its progress and ends.
# Metaflow starts the task below a shell that forwards no signals: as PID 1 it would ignore SIGTERM, as a child it would die at once and end the
# container. So the shell gets no signal; once the task has ended, it saves the logs and ends too.
set -um  # -m: the command gets a process group of its own, and receives Ctrl-C.
[ $# -gt 0 ] || set -- bash

forward_signal() {
    [ -n "${!:-}" ] || exit 143  # The command has not started.
    is_interrupted=yes
    local folder pid key parent has_task=""
    local -A tasks=()
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        # `python FLOW.py ... step NAME ...`: `step` is a separate argument only in a task's command line, not in that of its shell.
        if [ "$pid" != $$ ] && tr '\0' '\n' 2>/dev/null <"$folder/cmdline" | grep --quiet --line-regexp step; then
            tasks[$pid]=yes
        fi
    done
    for pid in "${!tasks[@]}"; do
        parent=""
        while read -r key parent && [ "$key" != PPid: ]; do :; done 2>/dev/null <"/proc/$pid/status"
        # Processes forked by a task have the same command line; the task ends them itself.
        [ -n "${tasks[${parent:-none}]:-}" ] || { kill -TERM "$pid" 2>/dev/null && has_task=yes; }
    done
    # No task is running: there is nothing to save, so the command itself gets the signal.
    [ -n "$has_task" ] || kill -TERM -- "-$!" 2>/dev/null
}
trap forward_signal TERM INT  # Before the command starts: PID 1 ignores a signal without a handler.
"$@" <&0 &
command=$!

is_interrupted=yes
while [ -n "$is_interrupted" ]; do
    is_interrupted=""
    wait "$command"
    status=$?
done
exit "$status"
