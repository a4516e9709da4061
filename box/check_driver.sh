#!/usr/bin/env bash
# Says in one line whether the host's driver runs the image's CUDA; fails if it does not.
set -uo pipefail
needed=${BOX_MIN_DRIVER:-580} cuda=${BOX_CUDA:-13.0}

if [ -z "$(type -P nvidia-smi)" ]; then
    echo "no GPU here: training runs on the CPU"
    exit 0
fi
found=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1)
found=${found%%$'\n'*}
if ! [[ $found =~ ^([0-9]+)\.[0-9.]+$ ]]; then
    echo "needs driver >= $needed for CUDA $cuda, found none that answers ($found): rent another machine"
    exit 1
fi
if [ "${BASH_REMATCH[1]}" -lt "$needed" ]; then
    echo "needs driver >= $needed for CUDA $cuda, found $found: rent a machine with a newer one"
    exit 1
fi
echo "driver $found runs CUDA $cuda"
