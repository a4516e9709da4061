#!/usr/bin/env bash
# Prepares the box; installs nothing. Fails if the host's driver is too old.
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
export BOX_VOLUME=${BOX_VOLUME:-/workspace}  # by which the program knows that this is a box

mkdir -p "$BOX_VOLUME/runs" "$BOX_VOLUME/data"

# A shell over SSH inherits nothing of the container's environment.
(
    umask 077
    for name in $(compgen -e | grep -E '^(PATH|(BOX|CLOUD|CUDA|GOOGLE|NVIDIA|RUNPOD|SERVE)_\w+)$'); do
        printf 'export %s=%q\n' "$name" "${!name}"
    done > ~/.box_environment
)
grep -qsF .box_environment ~/.bashrc || printf '. ~/.box_environment\ncd %q\n' "$(dirname "$here")" >> ~/.bashrc

bash "$here/check_driver.sh"
