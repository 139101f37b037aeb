#!/bin/sh
# Builds verbs.c with rdma-core's header against libringbell_verbs.so, and runs it: two processes, each with a queue pair.
# TARGET names cargo's folder with the library; target/debug by default. Ends with its exit code; 77 when there is no gcc or no header.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$(cd "${TARGET:-$root/target/debug}" && pwd)
command -v "${CC:-gcc}" >/dev/null || { echo "SKIPPED: no gcc"; exit 77; }
echo '#include <infiniband/verbs.h>' | "${CC:-gcc}" -fsyntax-only -x c - 2>/dev/null ||
  { echo "SKIPPED: no infiniband/verbs.h. Debian: apt-get install libibverbs-dev"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"${CC:-gcc}" -std=gnu11 -Wall -Wextra -O2 "$here/verbs.c" -L"$target" -lringbell_verbs -Wl,-rpath,"$target" -o "$out/verbs"
"$out/verbs"
