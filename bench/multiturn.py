#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time to first token, cold, warm and from SSD after a restart, for several prompt lengths.

Starts the server itself (a free port, a temporary home), so that a restart is a real one:

    bench/multiturn.py --bin build/mtplx --model FILE.gguf [--tokens 256,1024,4096,7000] [--runs 5]

For each length: `cold` runs with "cache": "off" (a shared template stem would count as warm
otherwise), then the prompt is stored, asked again (`warm`), and asked once more in a process that
was started afterwards (`ssd`). Prints medians and the ratios to cold, and as JSON with --json.
"""
import argparse
import json
import statistics
import tempfile
import time

import benchlib


class Server(benchlib.Server):
    def __init__(self, args, home):
        command = [args.bin, "start", "--model", args.model, "--port", "{port}",
                   "--ssd-restore", "always"]
        if args.threads:
            command += ["--threads", str(args.threads)]
        super().__init__(command, home)

    def ask(self, text, **fields):
        """Returns (seconds to the first content, usage)."""
        begin, first, usage = time.perf_counter(), None, None
        for chunk in self.stream(text, max_tokens=4, **fields):
            usage = chunk.get("usage") or usage
            if first is None and benchlib.has_text(chunk):
                first = time.perf_counter() - begin
        return first if first is not None else time.perf_counter() - begin, usage

    def wait_durable(self):
        """Until the write queue is empty."""
        for _ in range(600):
            if benchlib.find(self.get("/info"), "queued_jobs") in (0, None):
                return
            time.sleep(0.05)


def measure(args, home, n):
    times = {"cold": [], "warm": [], "ssd": []}
    n_prompt = 0
    for run in range(args.runs):
        text = benchlib.prompt(n, "%d/%d" % (n, run))
        server = Server(args, home)
        seconds, usage = server.ask(text, cache="off")
        assert usage["cache_mode"] == "cold", usage
        n_prompt = usage["prompt_tokens"]
        times["cold"].append(seconds)
        server.ask(text)
        seconds, usage = server.ask(text)
        assert usage["cache_mode"] == "warm_prefix", usage
        times["warm"].append(seconds)
        server.wait_durable()
        server.stop()
        server = Server(args, home)
        seconds, usage = server.ask(text)
        assert usage["cache_mode"] == "ssd", usage
        times["ssd"].append(seconds)
        server.stop()
    row = {"prompt_tokens": n_prompt}
    for mode, seconds in times.items():
        row[mode + "_ms"] = round(1000 * statistics.median(seconds), 2)
    row["warm_ratio"] = round(row["warm_ms"] / row["cold_ms"], 4)
    row["ssd_ratio"] = round(row["ssd_ms"] / row["cold_ms"], 4)
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bin", default="build/mtplx")
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", default="256,1024,4096,7000")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as home:
        for n in [int(t) for t in args.tokens.split(",")]:
            row = measure(args, home, n)
            results.append(row)
            if not args.json:
                print("%(prompt_tokens)6d tokens: cold %(cold_ms)9.1f ms   warm %(warm_ms)7.1f ms "
                      "(%(warm_ratio).4f)   ssd %(ssd_ms)7.1f ms (%(ssd_ratio).4f)" % row,
                      flush=True)
    if args.json:
        print(json.dumps({"runs": args.runs, "results": results}, indent=1))


if __name__ == "__main__":
    main()
