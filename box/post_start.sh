#!/usr/bin/env bash
# Starts training in the background: the newest unfinished run, or, called as `train ARGUMENTS`, a new one.
set -uo pipefail
code=$(dirname "$(dirname "$(readlink -f "$0")")")

# shellcheck source=/dev/null
[ -r ~/.box_environment ] && . ~/.box_environment
export BOX_VOLUME=${BOX_VOLUME:-/workspace}
log=$BOX_VOLUME/train.log
if [ "$#" -eq 0 ] && [ "${BOX_RESUME:-1}" = 0 ]; then
    echo "BOX_RESUME=0: nothing is resumed"
    exit 0
fi
bash "$code/box/check_driver.sh" | tee -a "$log" || exit 1

size=$(stat -c %s "$log")
PYTHONPATH=$code setsid python -m box.supervise "$@" >> "$log" 2>&1 < /dev/null &
echo "training is supervised; its output: $log"
if [ -t 1 ]; then
    echo "Ctrl-C ends watching, not training"
    exec tail -c "+$((size + 1))" -F "$log"
fi
