#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether more threads hurt when somebody else wants the cores.

    bench/neighbour.py --bin build/mtplx --model FILE.gguf [--threads 2] [--neighbours 1] [--runs 5]

A neighbour is a process that computes without pause. Measures a prompt of 256 tokens and 32 tokens
after it with 1 thread and with several, in turn, beside the neighbours and without them. Several
threads are to be slower than one by a few per cent at most: one that the neighbour keeps from running
must not be waited for.
"""
import argparse
import json
import os
import subprocess
import sys

import benchlib

BURN = "while True:\n    pass\n"


def measure(args, n_threads):
    out = subprocess.run([args.bin, "bench", "model", args.model, "--threads", str(n_threads), "--prompt",
                          "256", "--gen", "32", "--repeat", "2", "--no-roof", "--json"],
                         stdout=subprocess.PIPE, check=True, text=True).stdout
    r = json.loads(out)
    return r["prefill"]["rates"][-1], r["decode"]["rates"][-1]


def rounds(args):
    rates = {}
    for n in range(args.runs):
        for n_threads in (1, args.threads) if n % 2 == 0 else (args.threads, 1):
            for kind, rate in zip(("prefill", "decode"), measure(args, n_threads)):
                rates.setdefault((kind, n_threads), []).append(rate)
    return {k: benchlib.median(v) for k, v in rates.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bin", default="build/mtplx")
    p.add_argument("--model", required=True)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--neighbours", type=int, default=1)
    p.add_argument("--runs", type=int, default=5)
    args = p.parse_args()
    if args.threads < 2:
        sys.exit("neighbour: this needs at least 2 threads")
    quiet = rounds(args)
    neighbours = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(args.neighbours)]
    try:
        busy = rounds(args)
    finally:
        for n in neighbours:
            n.kill()
            n.wait()
    print("tokens/s, medians of %d        1 thread   %d threads   ratio" % (args.runs, args.threads))
    for name, rates in (("alone", quiet), ("%d neighbours" % args.neighbours, busy)):
        for kind in ("prefill", "decode"):
            one, many = rates[(kind, 1)], rates[(kind, args.threads)]
            print("%-28s%11.1f%12.1f%8.2f" % ("%s, %s" % (kind, name), one, many, many / one))


if __name__ == "__main__":
    main()
