#!/usr/bin/env bash
# The container's first process: prepares the box, opens SSH, resumes a run, and hands SIGTERM on to it.
set -uo pipefail
root=${BOX_ROOT:-}
pid_file=$root/run/erl-trader.pid

stop() {
    # The supervisor holds a lock on its file; no one else here is told of the end.
    if [ -s "$pid_file" ] && ! flock -n "$pid_file" true; then
        kill -TERM "$(cat "$pid_file")"
        flock -w 60 "$pid_file" true
    fi
    jobs -p | xargs -r kill
    exit 143
}
trap stop TERM INT

open_ssh() {
    [ -n "${PUBLIC_KEY:-}" ] || return 0
    mkdir -p ~/.ssh
    grep -qsF "$PUBLIC_KEY" ~/.ssh/authorized_keys || echo "$PUBLIC_KEY" >> ~/.ssh/authorized_keys
    chmod -R go= ~/.ssh
    ssh-keygen -A
    service ssh start
}

if bash "$root/pre_start.sh"; then ready=yes; else ready=no; fi
open_ssh
if [ "$ready" = yes ]; then bash "$root/post_start.sh"; fi

# Waited for in the background: bash answers a signal only between commands.
sleep infinity &
wait $!
