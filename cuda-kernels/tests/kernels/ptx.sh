#!/bin/sh
# Makes the PTX files of the tests by clang 19 (Debian: apt-get install clang-19). Nothing of NVIDIA's toolkit is used.
set -e
cd "$(dirname "$0")"
for name in ptx_simple ptx_faults; do
  "${CLANG:-clang-19}" -x cuda --cuda-device-only -S -nocudainc -nocudalib --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 \
    -std=c++17 -O2 -ffp-contract=off -gline-tables-only -fdebug-prefix-map="$PWD=." -I ../../include $name.cu -o $name.ptx
done
