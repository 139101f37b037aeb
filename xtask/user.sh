# The tests that can depend on rights once more, as an unprivileged user. `cargo xtask user` starts it as root.
# $1: a folder for it; $2: cargo's; $3: the tests, as a filter of nextest.
#
# All of it runs in a mount namespace of its own: there /etc/passwd has one user more, /dev/net/tun is closed to it, and a
# folder of its own lies where tests write. The machine stays unchanged. The tests are those that were built before, and the
# test runner reads their list: the user needs neither cargo nor a Rust compiler.
set -eu
step=$1 target=$2 wanted=$3
user=60999 # One that neither Debian nor systemd assigns.

if [ "${4-}" != inside ]; then
  rm -rf "$step"
  mkdir -p "$step/tmp" "$step/home" "$target/tmp"
  chmod 755 "$step"
  chown $user:$user "$step/tmp" "$step/home"
  { cat /etc/passwd; echo "ringbell-test:x:$user:$user::$step/home:/bin/sh"; } >"$step/passwd"
  (umask 077; : >"$step/tun")
  cargo nextest list --workspace --list-type binaries-only --message-format json >"$step/binaries.json"
  cargo metadata --format-version 1 --locked >"$step/metadata.json"
  # It lies in a home of root's, which the user cannot enter.
  cp "$(command -v cargo-nextest)" "$step/"
  chmod a+r "$step"/*
  exec unshare --mount --propagation private sh "$0" "$step" "$target" "$wanted" inside
fi

# A folder that others cannot enter is covered by an accessible overlay, the outermost first.
covers=0
cover() {
  [ "$1" != / ] || return 0
  cover "$(dirname "$1")"
  [ -n "$(find "$1" -maxdepth 0 ! -perm -o=x)" ] || return 0
  # An overlay's upper folder must not lie on an overlay, so it gets a file system of its own.
  [ $covers != 0 ] || mount -t tmpfs -o mode=755 tmpfs /mnt
  covers=$((covers + 1))
  mkdir -m 755 /mnt/$covers /mnt/$covers/upper
  mkdir /mnt/$covers/work
  mount -t overlay -o "lowerdir=$1,upperdir=/mnt/$covers/upper,workdir=/mnt/$covers/work" overlay "$1"
}
as_user() {
  setpriv --reuid $user --regid $user --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
    env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$step/home" LANG=C.UTF-8 RINGBELL_TEST_BUILT="$target/debug" "$@"
}
# The user, with the needed access and nothing else.
PROBE='
[ "$(id -u)" != 0 ] || { echo "the user is still root"; exit 1; }
for file in "$@"; do [ -r "$file" ] || { echo "the user cannot read $file"; exit 1; }; done
[ ! -w /dev/net/tun ] || { echo "/dev/net/tun is open to the user"; exit 1; }'
ready() {
  cover "$PWD" && cover "$target" &&
    mount --bind "$step/tmp" "$target/tmp" && mount --bind "$step/passwd" /etc/passwd &&
    if [ -e /dev/net/tun ]; then mount --bind "$step/tun" /dev/net/tun; fi &&
    # Through the covers: what this shell has open is the folder below them.
    cd "$PWD" && as_user sh -euc "$PROBE" sh "$step/binaries.json" "$step/metadata.json" "$step/cargo-nextest"
}
# 77, as in other test suites: something is missing.
ready >"$step/why" 2>&1 || exit 77
as_user "$step/cargo-nextest" nextest run --no-fail-fast --binaries-metadata "$step/binaries.json" \
  --cargo-metadata "$step/metadata.json" -E "$wanted"
