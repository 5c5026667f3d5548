#!/bin/bash
# SPDX-License-Identifier: MIT
#
# install-deps.sh build|model|test|aarch64...: installs the Debian packages of the named sets that are
# missing, and only those. As root or through sudo; without either it prints the one command to run.
set -u

build_set="gcc libc6-dev cmake ninja-build pkg-config libmicrohttpd-dev libjson-c-dev libxxhash-dev
           libssl-dev libpcre2-dev liblz4-dev libzstd-dev"
model_set="python3 python3-pip ca-certificates"
test_set="libcmocka-dev clang libclang-rt-14-dev llvm-14 unicode-data curl procps
          python3 python3-pytest python3-requests python3-numpy python3-jinja2
          python3-prometheus-client"
aarch64_set="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"

say() { printf '[mtplx] %s\n' "$*" >&2; }

wanted=()
for set in "$@"; do
    case $set in
        build) wanted+=($build_set) ;;
        model) wanted+=($model_set) ;;
        test)  wanted+=($test_set) ;;
        aarch64) wanted+=($aarch64_set) ;;
        *) say "install-deps.sh: unknown set '$set' (build, model, test, aarch64)"; exit 2 ;;
    esac
done
[ ${#wanted[@]} -gt 0 ] || exit 0

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    # Not Debian: what matters is that the tools are there, not what their packages are called.
    missing=()
    for tool in cc cmake ninja pkg-config; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    for lib in libmicrohttpd json-c libxxhash libcrypto libpcre2-8 liblz4 libzstd; do
        pkg-config --exists "$lib" 2>/dev/null || missing+=("$lib")
    done
    [ ${#missing[@]} -eq 0 ] && exit 0
    say "this is not Debian, so packages must be installed by hand; missing: ${missing[*]}"
    say "on Debian they are: ${wanted[*]}"
    exit 1
fi

# One query for all. A name that dpkg has never heard of is only missing from the answer.
have=" $(dpkg-query -W -f='${Package}=${db:Status-Status} ' "${wanted[@]}" 2>/dev/null) "
missing=()
for package in "${wanted[@]}"; do
    case $have in
        *" $package=installed "*) ;;
        *) missing+=("$package") ;;
    esac
done
[ ${#missing[@]} -eq 0 ] && exit 0

command="apt-get install -y --no-install-recommends ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        as_root=(sudo)
    else
        say "some Debian packages are missing: ${missing[*]}"
        say "run this as root, then repeat the command: $command"
        exit 1
    fi
fi

say "installing Debian packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
options=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y \
        --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1
}

# The lists may be absent or stale; then the first try fails and the second has fresh ones.
if ! install; then
    if ! "${as_root[@]}" apt-get "${options[@]}" update </dev/null >"$log" 2>&1 || ! install; then
        tail -n 15 "$log" >&2
        say "the packages could not be installed (no network, or not Debian 12?). The command was:"
        say "$command"
        exit 1
    fi
fi
