#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time from starting a server to its first /health 200, and its memory then: `start.py --model FILE
[--runs N] [--bin build/mtplx] [--peer LLAMA-SERVER]`.

The file is read once before (a warm page cache); the first run hashes the model, the others find the
hash remembered. With --peer another server is started in turn. The target is the peer's time plus the
file's size at 2 GB/s."""

import argparse
import http.client
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def status_of(port):
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        c.request("GET", "/health")
        return c.getresponse().status
    except OSError:
        return 0


def run_once(command, port, env):
    begin = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        while status_of(port) != 200:
            assert process.poll() is None, f"ended: {' '.join(command)}"
            time.sleep(0.002)
        seconds = time.monotonic() - begin
        text = open(f"/proc/{process.pid}/status").read()
        fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        kib = {k: int(re.search(k + r":\s+(\d+)", text).group(1)) for k in ("VmHWM", "VmRSS")}
        return seconds, cpu, kib["VmHWM"] * 1024, kib["VmRSS"] * 1024
    finally:
        process.terminate()
        process.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--bin", default="build/mtplx")
    p.add_argument("--peer")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", default="2")
    a = p.parse_args()
    size = os.path.getsize(a.model)
    with open(a.model, "rb") as f:
        while f.read(1 << 24):
            pass
    names = ["mtplx"] + (["peer"] if a.peer else [])
    runs = {n: [] for n in names}
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home}
        for i in range(a.runs + 1):
            for n in names:
                port = free_port()
                command = {
                    "mtplx": [a.bin, "start", "--kv-budget", "512M"],
                    "peer": [a.peer, "-c", "4096", "--no-warmup"],
                }[n] + ["--port", str(port), "--threads" if n == "mtplx" else "-t", a.threads,
                        "--model", a.model]
                result = run_once(command, port, env)
                if i == 0:
                    print(f"{n}: first start {result[0]:.3f} s (CPU {result[1]:.2f} s)")
                else:
                    runs[n].append(result)
    print(f"{os.path.basename(a.model)}: {size / MIB:.1f} MiB, {a.runs} runs each")
    for n in names:
        seconds = [r[0] for r in runs[n]]
        peak, now = (max(r[k] for r in runs[n]) for k in (2, 3))
        cpu = statistics.median(r[1] for r in runs[n])
        print(f"{n}: median {statistics.median(seconds):.3f} s, best {min(seconds):.3f} s, CPU "
              f"{cpu:.2f} s; peak {peak / MIB:.1f} MiB = {peak / size:.2f} x file, resident "
              f"{now / MIB:.1f} MiB = {now / size:.2f} x file")
    if a.peer:
        target = statistics.median(r[0] for r in runs["peer"]) + size / 2e9
        got = statistics.median(r[0] for r in runs["mtplx"])
        print(f"target {target:.3f} s: {got / target:.2f} of it")


main()
