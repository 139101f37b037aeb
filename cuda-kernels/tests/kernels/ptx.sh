#!/bin/sh
# Makes the PTX files of the tests by clang 19 (Debian: apt-get install clang-19). Nothing of NVIDIA's toolkit is used.
# With a folder as argument they are written there.
set -e
cd "$(dirname "$0")"
to=${1:-.}
make() {
  name=$1
  shift
  "${CLANG:-clang-19}" -x cuda --cuda-device-only -S -nocudainc -nocudalib -std=c++17 -O2 "$@" \
    -fdebug-prefix-map="$PWD=." -I ../../include -isystem ../../include/cuda "$name.cu" -o "$to/$name.ptx"
}
# Without comments and empty lines, which are a fifth of a file without line tables.
small() {
  make "$@"
  sed -E -i 's/[[:space:]]*\/\/ .*$//; /^[[:space:]]*(\/\/)?[[:space:]]*$/d' "$to/$1.ptx"
}
lines="-gline-tables-only"
make ptx_simple --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 -ffp-contract=off $lines
make ptx_faults --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 -ffp-contract=off $lines
make misuse --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 -ffp-contract=off $lines
# 128-bit loads with an order are of version 8.3 and sm_70. Line tables would double the file.
make ptx_queue --cuda-gpu-arch=sm_90 --cuda-feature=+ptx83 -ffp-contract=off
make nic_misuse --cuda-gpu-arch=sm_90 --cuda-feature=+ptx83 -ffp-contract=off $lines
small cuda_functions --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70
small cuda_patterns --cuda-gpu-arch=sm_90 --cuda-feature=+ptx83 -include cuda_runtime.h
