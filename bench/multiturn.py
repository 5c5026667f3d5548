#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time to first token, cold, warm and from SSD after a restart, for several prompt lengths.

Starts the server itself (a free port, a temporary home), so that a restart is a real one:

    bench/multiturn.py --bin build/mtplx --model FILE.gguf [--tokens 256,1024,4096,7000] [--runs 5]

For each length: `cold` runs with "cache": "off" (a shared template stem would count as warm
otherwise), then the prompt is stored, asked again (`warm`), and asked once more in a process that
was started afterwards: with the page cache as it is (`ssd`), and in another one after the files were
dropped from it (`dropped`). Prints medians and the ratios to cold, and as JSON with --json.

--ids asks for plain completions of random token ids, for a file without chat template or vocabulary.

--decode N measures what writing behind costs instead: N tokens are decoded right after a prompt that has
to be stored, in turn by a server with the cold tier and by one without; milliseconds per token.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import benchlib


class Server(benchlib.Server):
    def __init__(self, args, home, *more):
        command = [args.bin, "start", "--model", args.model, "--port", "{port}",
                   "--ssd-restore", "always", *args.option, *more]
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


def drop_files(home):
    """Out of the page cache; nothing that needs to be root."""
    os.sync()
    for folder, _, names in os.walk(os.path.join(home, ".mtplx/session_cache")):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def measure_decode(args, home, n):
    """Milliseconds per token behind the first, with and without a cold tier."""
    servers = {"on": Server(args, home), "off": Server(args, home, "--ssd-session-cache", "off")}
    per_token = {"on": [], "off": []}
    for run in range(args.runs):
        for mode in ("on", "off") if run % 2 == 0 else ("off", "on"):
            text = args.prompt(n, "decode %d/%d" % (n, run))
            first, last, n_tokens = None, None, 0
            for chunk in servers[mode].stream(text, max_tokens=args.decode, ignore_eos=True):
                if benchlib.has_text(chunk):
                    last = time.perf_counter()
                    first, n_tokens = (first or last), n_tokens + 1
            per_token[mode].append(1000 * (last - first) / max(1, n_tokens - 1))
            servers["on"].wait_durable()
    for s in servers.values():
        s.stop()
    row = {"prompt_tokens": n}
    for mode, ms in per_token.items():
        row["ms_per_token_" + mode] = round(statistics.median(ms), 3)
    row["ratio"] = round(row["ms_per_token_on"] / row["ms_per_token_off"], 4)
    return row


def measure(args, home, n):
    times = {"cold": [], "warm": [], "ssd": [], "dropped": []}
    n_prompt = 0
    for run in range(args.runs):
        text = args.prompt(n, "%d/%d" % (n, run))
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
        for mode in ("ssd", "dropped"):
            if mode == "dropped":
                drop_files(home)
            server = Server(args, home)
            seconds, usage = server.ask(text)
            assert usage["cache_mode"] == "ssd", usage
            times[mode].append(seconds)
            server.stop()
    row = {"prompt_tokens": n_prompt}
    for mode, seconds in times.items():
        row[mode + "_ms"] = round(1000 * statistics.median(seconds), 2)
    for mode in ("warm", "ssd", "dropped"):
        row[mode + "_ratio"] = round(row[mode + "_ms"] / row["cold_ms"], 4)
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bin", default="build/mtplx")
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", default="256,1024,4096,7000")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int)
    p.add_argument("--option", action="append", default=[], help="one more word for `mtplx start`")
    p.add_argument("--decode", type=int, metavar="N", help="what writing behind costs, instead")
    p.add_argument("--ids", action="store_true", help="plain completions of random token ids")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    args.prompt = benchlib.ids if args.ids else benchlib.prompt
    results = []
    with tempfile.TemporaryDirectory() as home:
        for n in [int(t) for t in args.tokens.split(",")]:
            row = measure_decode(args, home, n) if args.decode else measure(args, home, n)
            results.append(row)
            if args.decode and not args.json:
                print("%(prompt_tokens)6d tokens, then decoding: %(ms_per_token_on).2f ms a token, without "
                      "a cold tier %(ms_per_token_off).2f ms (%(ratio).4f)" % row, flush=True)
            elif not args.json:
                print("%(prompt_tokens)6d tokens: cold %(cold_ms)9.1f ms   warm %(warm_ms)7.1f ms "
                      "(%(warm_ratio).4f)   ssd %(ssd_ms)7.1f ms (%(ssd_ratio).4f)   dropped "
                      "%(dropped_ms)7.1f ms (%(dropped_ratio).4f)" % row,
                      flush=True)
    if args.json:
        print(json.dumps({"runs": args.runs, "results": results}, indent=1))


if __name__ == "__main__":
    main()
