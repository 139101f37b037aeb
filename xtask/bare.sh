# Kernels and the test command on a bare machine: a minimal Debian with Rust, clang, g++ and python3, as a user without rights.
# `cargo xtask step bare` starts it in the checkout, in a mount namespace of its own.
# $1: a folder for it; $2: cargo's target folder; $3: Rust; $4: the home of cargo.
#
# mmdebstrap makes the system. The checkout, this Rust and the downloaded crates lie in it at their own places, so that what is
# built is not built again. The user has the checkout's files and no right besides.
set -eu
step=$1 target=$2 rust=$3 crates=$4 checkout=$PWD
system=$step/system
# What the README and the tutorial ask for, besides Rust. Git has made the checkout.
PACKAGES=clang-19,g++,python3,git,ca-certificates

# 77, as in other test suites: something is missing.
lacks() {
  echo "$1" >"$step/why"
  exit 77
}
make_system() {
  # One of an earlier list of packages.
  rm -rf "$system"
  # shellcheck disable=SC1091
  . /etc/os-release
  [ "${ID-}" = debian ] || lacks "no minimal Debian can be made here: this is no Debian"
  # This machine's sources and the settings of its network.
  set -- "$VERSION_CODENAME" "$system"
  for list in /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list; do
    if [ -s "$list" ]; then set -- "$@" "$list"; fi
  done
  for own in /etc/apt/apt.conf.d/*; do
    if grep -q Acquire "$own"; then set -- "--aptopt=$own" "$@"; fi
  done
  timeout 600 mmdebstrap --quiet --variant=minbase --include=$PACKAGES "$@" || {
    rm -rf "$system"
    lacks "no minimal Debian can be made here: mmdebstrap ended with an error"
  }
}
mount --make-rprivate / && unshare --user --map-user=1000 --map-group=1000 true ||
  lacks "this machine lets no process make a user namespace in a mount namespace"
for tool in clang-19 g++ python3; do
  [ -e "$system/usr/bin/$tool" ] || { make_system; break; }
done

mount --bind "$system" "$system"
mount -t tmpfs -o mode=1777 tmpfs "$system/tmp"
for place in "$checkout" "$target" "$rust" "$crates"; do
  mkdir -p "$system$place"; mount --rbind "$place" "$system$place"
done
for own in tmp steps; do mkdir -p "$step/$own" "$target/$own"; mount --bind "$step/$own" "$system$target/$own"; done
mount --rbind /dev "$system/dev"; mount -t proc proc "$system/proc"; mount --rbind /sys "$system/sys"
mkdir -p "$system/home/user" "$system/outside"
# An installed Debian has this file.
[ -e "$system/etc/hosts" ] || printf '127.0.0.1 localhost\n::1 localhost\n' >"$system/etc/hosts"
# A process in a chroot may make no user namespace.
cd "$system"; pivot_root . outside; cd /; umount -l /outside
exec unshare --user --map-user=1000 --map-group=1000 \
  env -i PATH="$rust/bin:/usr/bin:/bin" HOME=/home/user LANG=C.UTF-8 CARGO_HOME="$crates" CARGO_TARGET_DIR="$target" \
  CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never ${CARGO_INCREMENTAL:+CARGO_INCREMENTAL=$CARGO_INCREMENTAL} \
  sh -c 'cd "$1" && cargo xtask gen --compare && exec cargo xtask test' sh "$checkout"
