#!/bin/sh
# Builds and runs the two C++ examples: sockets.cpp on the C API, ping.cu with `ringbell cc`.
# TARGET names cargo's folder with libringbell.so and the command; target/debug by default.
# Ends with the first failure's exit code; 77 when there is no g++, or no clang for ping.cu.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$(cd "${TARGET:-$root/target/debug}" && pwd)
command -v "${CXX:-g++}" >/dev/null || { echo "SKIPPED: no g++"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"${CXX:-g++}" -std=c++17 -Wall -Wextra -O2 -pthread -I"$root/cuda-kernels/include" "$here/sockets.cpp" \
  -L"$target" -lringbell -Wl,-rpath,"$target" -o "$out/sockets"
"$out/sockets"

command -v "${CLANG:-clang-19}" >/dev/null || { echo "SKIPPED: no clang-19 for ping.cu"; exit 77; }
"$target/ringbell" cc "$here/ping.cu" -o "$out/ping"
"$out/ping"
