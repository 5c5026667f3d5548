#!/bin/bash
# SPDX-License-Identifier: MIT
#
# aarch64-sysroot.sh FOLDER: fills FOLDER with Debian's libraries and headers for arm64, for the
# cross build (cmake/aarch64-linux-gnu.cmake). Needs apt-get and a network, but neither root nor any
# change to the machine: apt runs on lists and a state of its own inside FOLDER.apt, signatures are
# checked as always, and the packages are unpacked, not installed. Does nothing when FOLDER is whole.
set -u

packages="libc6-dev libssl-dev libpcre2-dev libjson-c-dev libmicrohttpd-dev libxxhash-dev
          liblz4-dev libzstd-dev libcmocka-dev"

root=${1:?usage: aarch64-sysroot.sh FOLDER}
root=$(realpath -m -- "$root")
apt=$root.apt
wanted=$(tr -s ' \n' ' ' <<<"$packages")
[ "$(cat -- "$root/.whole" 2>/dev/null)" = "$wanted" ] && exit 0

say() { printf '[mtplx] %s\n' "$*" >&2; }
fail() {
    tail -n 15 -- "$apt/log" >&2
    say "no arm64 libraries: $*"
    exit 1
}

mkdir -p "$apt"/{lists,cache/archives}/partial "$apt/state" || exit 1
: >"$apt/log"
options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$apt/state"
         -o Dir::State::Lists="$apt/lists" -o Dir::State::status=/dev/null
         -o Dir::Cache="$apt/cache" -o Acquire::Languages=none -o Acquire::Retries=3
         -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
         -o APT::Sandbox::User=root -o Debug::NoLocking=1)

say "fetching the arm64 libraries of the cross build (34 MB)"
apt-get "${options[@]}" update </dev/null >>"$apt/log" 2>&1 || fail "the lists cannot be fetched"
# shellcheck disable=SC2086
apt-get "${options[@]}" install --download-only --no-install-recommends -y $packages \
    </dev/null >>"$apt/log" 2>&1 || fail "the packages cannot be fetched"

rm -rf -- "$root.new" "$root"
mkdir -p -- "$root.new"
for deb in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$root.new" >>"$apt/log" 2>&1 || fail "$(basename "$deb") cannot be unpacked"
done
printf '%s' "$wanted" >"$root.new/.whole"
mv -- "$root.new" "$root" && rm -rf -- "$apt"
