#!/bin/sh
# Makes the PTX files of the tests by clang 19 (Debian: apt-get install clang-19). Nothing of NVIDIA's toolkit is used.
set -e
cd "$(dirname "$0")"
make() {
  name=$1
  shift
  "${CLANG:-clang-19}" -x cuda --cuda-device-only -S -nocudainc -nocudalib -std=c++17 -O2 -ffp-contract=off "$@" \
    -fdebug-prefix-map="$PWD=." -I ../../include "$name.cu" -o "$name.ptx"
}
make ptx_simple --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 -gline-tables-only
make ptx_faults --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 -gline-tables-only
make misuse --cuda-gpu-arch=sm_80 --cuda-feature=+ptx70 -gline-tables-only
# 128-bit loads with an order are of version 8.3 and sm_70. Line tables would double the file.
make ptx_queue --cuda-gpu-arch=sm_90 --cuda-feature=+ptx83
