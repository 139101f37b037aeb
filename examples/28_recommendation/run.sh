#!/bin/sh
# Runs the ranks as processes: to the end, and with a rank of each role that dies. Then each of the ten others names it, and ends.
# TARGET names cargo's folder with ringbell and the examples; target/debug by default.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$(cd "${TARGET:-$here/../../target/debug}" && pwd)
program="$target/examples/28_recommendation"
out=$(mktemp)
trap 'rm -f "$out"' EXIT
export RUST_BACKTRACE=0

"$target/ringbell" run -n 11 --deadline 100 -- "$program" --requests 16
for rank in 1 6 8 9; do
  if "$target/ringbell" run -n 11 --keep-going --deadline 100 -- "$program" --requests 20000 --die $rank >"$out" 2>&1; then
    echo "the job ended well without rank $rank"
    exit 1
  fi
  named=$(grep -E "^\[ *[0-9]+\] Error: .*rank $rank (has )?failed" "$out" | cut -d']' -f1 | sort -u | wc -l)
  if [ "$named" != 10 ]; then
    echo "$named of 10 ranks name rank $rank:"
    cat "$out"
    exit 1
  fi
  echo "rank $rank died: 10 of 10 ranks name it"
done
