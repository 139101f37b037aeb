#!/bin/sh
# Builds and runs all_reduce.cpp: three processes and their NICs.
# TARGET names cargo's folder with libringbell.so; target/debug by default. Ends with its exit code; 77 when
# there is no g++.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$(cd "${TARGET:-$root/target/debug}" && pwd)
command -v "${CXX:-g++}" >/dev/null || { echo "SKIPPED: no g++"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"${CXX:-g++}" -std=c++17 -Wall -Wextra -O2 -I"$root/cuda-kernels/include" "$here/all_reduce.cpp" \
  -L"$target" -lringbell -Wl,-rpath,"$target" -o "$out/all_reduce"
"$out/all_reduce"
