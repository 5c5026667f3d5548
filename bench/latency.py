#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What running streams feel while somebody else's long prompt is read.

    bench/latency.py --bin build/mtplx --model FILE.gguf [--streams 4] [--prompt 4096] [--runs 5]

Starts a server, lets some streams run, and sends a long prompt, several times. Prints the time
between two tokens of a stream (p50, p99, longest) and the streams' speed with and without the prompt
being read, and how long the prompt took beside what it takes on an idle server. The streams are to
keep at least half of their speed. They grow meanwhile, and a token costs more the more stand before
it: the speed without the prompt is the mean of before and after it.
"""
import argparse
import json
import tempfile
import threading
import time

import benchlib


class Stream(threading.Thread):
    """One endless answer; remembers when each token came."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.server, self.seed = server, seed
        self.times, self.is_ended = [], False

    def run(self):
        try:
            for chunk in self.server.stream(benchlib.prompt(60, "stream %d" % self.seed),
                                            max_tokens=100000, ignore_eos=True, cache="off"):
                if benchlib.has_text(chunk):
                    self.times.append(time.perf_counter())
                if self.is_ended:
                    return
        except OSError:
            pass


def first_token_s(server, text):
    """Seconds until the first token, and the number of prompt tokens."""
    begin, first, usage = time.perf_counter(), None, {}
    for chunk in server.stream(text, max_tokens=1, cache="off", ignore_eos=True):
        usage = chunk.get("usage") or usage
        if first is None and benchlib.has_text(chunk):
            first = time.perf_counter() - begin
    return first or time.perf_counter() - begin, usage.get("prompt_tokens", 0)


def between(streams, begin, end):
    """(gaps in ms, tokens per second of one stream) in that time."""
    gaps, n_tokens = [], 0
    for s in streams:
        times = [t for t in list(s.times) if begin <= t <= end]
        n_tokens += len(times)
        gaps += [1000 * (b - a) for a, b in zip(times, times[1:])]
    return gaps, n_tokens / (end - begin) / len(streams)


def listen(streams, seconds):
    """The same from now on for so long."""
    begin = time.perf_counter()
    time.sleep(seconds)
    return between(streams, begin, time.perf_counter())


def show(gaps):
    return {"p50_ms": round(benchlib.percentile(gaps, 50), 1),
            "p99_ms": round(benchlib.percentile(gaps, 99), 1), "longest_ms": round(max(gaps), 1)}


def measure(args, home):
    command = [args.bin, "start", "--model", args.model, "--port", "{port}", "--ssd-session-cache",
               "off"] + (["--threads", str(args.threads)] if args.threads else [])
    server = benchlib.Server(command, home)
    idle_s = []
    for run in range(args.runs):
        seconds, n_prompt = first_token_s(server, benchlib.prompt(args.prompt, "idle %d" % run))
        idle_s.append(seconds)
    calm, busy, calm_speed, busy_speed, prompt_s = [], [], [], [], []
    for run in range(args.runs):
        # New streams each time: an answer ends with the context.
        streams = [Stream(server, args.streams * run + i) for i in range(args.streams)]
        for s in streams:
            s.start()
        while min(len(s.times) for s in streams) < 5:
            time.sleep(0.01)
        before = listen(streams, args.calm)
        begin = time.perf_counter()
        first_token_s(server, benchlib.prompt(args.prompt, "busy %d" % run))
        end = time.perf_counter()
        gaps, speed = between(streams, begin, end)
        busy += gaps
        busy_speed.append(speed)
        prompt_s.append(end - begin)
        after = listen(streams, args.calm)
        calm += before[0] + after[0]
        calm_speed.append((before[1] + after[1]) / 2)
        for s in streams:
            s.is_ended = True
        for s in streams:
            s.join()
    server.stop()
    ratios = [b / a for a, b in zip(calm_speed, busy_speed)]
    return {"streams": args.streams, "prompt_tokens": n_prompt, "runs": args.runs,
            "without": show(calm), "with": show(busy),
            "stream_tokens_per_s": {"without": round(benchlib.median(calm_speed), 1),
                                    "with": round(benchlib.median(busy_speed), 1)},
            "kept_speed": round(benchlib.median(ratios), 3),
            "prompt_s": {"idle": round(benchlib.median(idle_s), 2),
                         "beside_streams": round(benchlib.median(prompt_s), 2)}}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bin", default="build/mtplx")
    p.add_argument("--model", required=True)
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--prompt", type=int, default=4096, help="tokens, about")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--calm", type=float, default=3.0, help="seconds without a prompt, before it and after")
    p.add_argument("--threads", type=int)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as home:
        r = measure(args, home)
    if args.json:
        print(json.dumps(r, indent=1))
        return
    print("%d streams, a prompt of %d tokens, %d runs" % (r["streams"], r["prompt_tokens"], r["runs"]))
    print("                    p50 ms    p99 ms  longest ms  tokens/s of a stream")
    for name in ("without", "with"):
        print("%-15s %10.1f%10.1f%12.1f%12.1f" % (name + " prompt", r[name]["p50_ms"],
              r[name]["p99_ms"], r[name]["longest_ms"], r["stream_tokens_per_s"][name]))
    print("streams keep %.0f %% of their speed; the prompt takes %.2f s, on an idle server %.2f s"
          % (100 * r["kept_speed"], r["prompt_s"]["beside_streams"], r["prompt_s"]["idle"]))


if __name__ == "__main__":
    main()
