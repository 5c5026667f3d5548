#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks how the files of src/ depend on each other:

- includes point one way only (the table below, and what follows from it);
- every header can be compiled alone (texts named *_impl*.h are parts of a .c file);
- file names are unique in src/, tests/ and bench/, so that a name says which file it is.

Prints what is wrong, then "N passed, N failed"; exit status 1 when anything is."""

import concurrent.futures
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SRC = ROOT / "src"

# module: what it may include directly. base is open to all.
DIRECT = {
    "base": [],
    "gguf": [],
    "text": [],
    "kernels": [],
    "http": [],
    "kv": ["kernels"],
    "model": ["kv", "gguf", "text"],
    "bank": ["kv"],
    "cold": ["kv"],
    "sched": ["model", "bank", "cold"],
    "api": ["sched", "text", "http"],
    "cli": ["api"],
    "main.c": ["cli"],
}


def reachable(module):
    seen, todo = {"base"}, [module]
    while todo:
        m = todo.pop()
        if m not in seen or m == module:
            seen.add(m)
            todo += [d for d in DIRECT[m] if d not in seen]
    return seen


def check_directions(files):
    wrong = []
    for path in files:
        module = path.relative_to(SRC).parts[0]
        if module not in DIRECT:
            wrong.append(f"{path.relative_to(ROOT)}: module '{module}' is not in the table")
            continue
        allowed = reachable(module)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not found:
                continue
            name = found.group(1)
            target = name.split("/")[0] if "/" in name and (SRC / name).exists() else module
            where = f"{path.relative_to(ROOT)}:{number}"
            if not (SRC / name).exists() and not (path.parent / name).exists():
                wrong.append(f'{where}: "{name}" does not exist')
            elif target not in allowed:
                wrong.append(f'{where}: {module} may not include {target} ("{name}")')
    return wrong


def check_unique():
    seen, wrong = {}, []
    for top in ("src", "tests", "bench"):
        for path in sorted((ROOT / top).rglob("*.[ch]")):
            if path.name in seen:
                wrong.append(f"{path.relative_to(ROOT)}: {seen[path.name]} has the same name")
            seen[path.name] = path.relative_to(ROOT)
    return wrong


# Headers of one architecture: elsewhere they need its cross compiler.
ARCHITECTURES = {"<arm_neon.h>": ("aarch64", "aarch64-linux-gnu-gcc"),
                 "<immintrin.h>": ("x86_64", "x86_64-linux-gnu-gcc")}


def compiler_for(path):
    """None where there is none: then the header is not looked at."""
    text = path.read_text()
    for include, (machine, cross) in ARCHITECTURES.items():
        if include in text and platform.machine() != machine:
            return shutil.which(cross)
    return os.environ.get("CC", "cc")


def compile_alone(path, flags):
    compiler = compiler_for(path)
    if compiler is None:
        return None
    done = subprocess.run(
        [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall",
         "-Wextra", "-Werror", "-Wno-unused-const-variable", "-Wno-psabi",
         f"-I{SRC}", *flags, "-x", "c", "-"],
        # Twice: the include guard is tested, too.
        input=f'#include "{path.relative_to(SRC)}"\n' * 2, text=True, capture_output=True)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error" in line][:3]
    return f"{path.relative_to(ROOT)}: not self-contained\n  " + "\n  ".join(errors)


def is_part(path):
    """A text that several .c files include after their own macros (the kernels), not a header."""
    return "_impl" in path.name


def main():
    files = sorted(SRC.rglob("*.[ch]"))
    headers = [f for f in files if f.suffix == ".h" and not is_part(f)]
    flags = shlex.split(subprocess.run(
        ["pkg-config", "--cflags", "libmicrohttpd", "json-c", "libcrypto", "libpcre2-8",
         "liblz4", "libzstd"], text=True,
        capture_output=True, check=True).stdout)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        alone = list(pool.map(lambda h: compile_alone(h, flags), headers))
    results = [check_directions(files), check_unique(), *[[a] if a else [] for a in alone]]
    for wrong in results:
        for line in wrong:
            print(line)
    failed = sum(1 for wrong in results if wrong)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
