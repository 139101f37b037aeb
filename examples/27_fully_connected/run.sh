#!/bin/sh
# Runs the layer as processes: over Ringbell, and over the MPI library of PATH, if it has one that can compile.
# TARGET names cargo's folder with ringbell and the examples; target/debug by default.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$(cd "${TARGET:-$here/../../target/debug}" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"$target/examples/27_fully_connected" --json "$out" --sides 33,200 --ranks 1,2 --turns 1 --products 3
