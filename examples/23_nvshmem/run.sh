#!/bin/sh
# Compiles two programs of NVSHMEM by `ringbell cc` and runs them as ranks of a job, on the emulated GPU.
# TARGET names cargo's folder with ringbell and its libraries; target/debug by default. Ends with its exit code; 77 when there is no
# compiler.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$(cd "${TARGET:-$root/target/debug}" && pwd)
for compiler in clang-19 g++; do
  command -v "$compiler" >/dev/null || { echo "SKIPPED: no $compiler"; exit 77; }
done
# With the other two checks the NIC sees no word of a CUDA program's memory, and signals do not arrive (docs/emulated-gpu.md).
[ "${RINGBELL_CHECK:-}" != all ] || export RINGBELL_CHECK=memcheck,synccheck
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

for name in ring_all_gather put_bw; do
  "$target/ringbell" cc --no-nvcc "$here/$name.cu" -o "$out/$name"
done
"$target/ringbell" run -R 3 -- "$out/ring_all_gather"
"$target/ringbell" run -R 2 -- "$out/put_bw"
