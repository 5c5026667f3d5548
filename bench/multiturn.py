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
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

WORDS = ("river stone engine letter garden window market signal paper winter harbour copper "
         "little ancient quiet bright carries follows measures builds between under against "
         "the a of and to in").split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def find(node, key):
    """The first value of `key` anywhere in nested dicts, or None."""
    if isinstance(node, dict):
        if key in node:
            return node[key]
        for v in node.values():
            found = find(v, key)
            if found is not None:
                return found
    return None


class Server:
    def __init__(self, args, home):
        self.port = free_port()
        env = dict(os.environ, HOME=home)
        command = [args.bin, "start", "--model", args.model, "--port", str(self.port),
                   "--ssd-restore", "always"]
        if args.threads:
            command += ["--threads", str(args.threads)]
        self.log = open(os.path.join(home, "server.log"), "ab")
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        deadline = time.time() + 60
        while True:
            try:
                with urllib.request.urlopen(self.url("/health"), timeout=2) as r:
                    if r.status == 200:
                        return
            except OSError:
                pass
            if time.time() > deadline or self.process.poll() is not None:
                sys.exit("the server did not start; its log: %s" % self.log.name)
            time.sleep(0.02)

    def url(self, path):
        return "http://127.0.0.1:%d%s" % (self.port, path)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        self.log.close()

    def ask(self, text, cache=None):
        """Returns (seconds to the first content, usage)."""
        body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 4,
                "temperature": 0, "stream_options": {"include_usage": True}}
        if cache:
            body["cache"] = cache
        request = urllib.request.Request(self.url("/v1/chat/completions"),
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        begin, first, usage = time.perf_counter(), None, None
        with urllib.request.urlopen(request, timeout=600) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                if first is None and any(c["delta"].get("content") for c in chunk["choices"]):
                    first = time.perf_counter() - begin
        return first if first is not None else time.perf_counter() - begin, usage

    def wait_durable(self):
        """Until the write queue is empty."""
        for _ in range(600):
            with urllib.request.urlopen(self.url("/info"), timeout=10) as r:
                info = json.load(r)
            if find(info, "queued_jobs") in (0, None):
                return
            time.sleep(0.05)


def prompt(n_tokens, seed):
    """About n_tokens tokens of words; the seed makes it differ from its first word on."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(max(1, n_tokens - 40)))


def measure(args, home, n):
    times = {"cold": [], "warm": [], "ssd": []}
    n_prompt = 0
    for run in range(args.runs):
        text = prompt(n, "%d/%d" % (n, run))
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
