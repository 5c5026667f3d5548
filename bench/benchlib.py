# SPDX-License-Identifier: MIT
"""What the benches in Python share: starting a server on a free port, asking it, prompts, figures, tables.
Standard library only."""
import atexit
import datetime
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
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


def prompt(n_tokens, seed):
    """About n_tokens tokens of words; the seed makes it differ from its first word on."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(max(1, n_tokens - 40)))


def ids(n_tokens, seed):
    """The same as token ids, for a model without a vocabulary of words."""
    rng = random.Random(seed)
    return [rng.randrange(1000, 2000) for _ in range(n_tokens)]


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


def median(values):
    return statistics.median(values)


def find_binary(folder, name):
    for part in ("", "bin", "build/bin"):
        path = pathlib.Path(folder).absolute() / part / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def version_of(binary):
    """What it says about itself, and the commit of this tree."""
    def words(command):
        r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return r.stdout.strip()
    return (words([binary, "--version"]) + " "
            + words(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"])).strip()


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"^(?:model name|Model)\s*:\s*(.*)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    wanted = r"^(avx|fma$|f16c|amx|asimd|sve|i8mm)"
    kept = [f for f in (flags.group(1).split() if flags else []) if re.match(wanted, f)]
    total = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return (name.group(1).strip() if name else "unknown CPU", kept, os.cpu_count(),
            int(total.group(1)) / 1048576 if total else 0)


def result_path(what=""):
    """Where a result of today and of this machine belongs."""
    cpu = re.sub(r"[^a-z0-9]+", "-", machine()[0].lower()).strip("-")
    return HERE / "results" / ("%s-%s%s.md" % (datetime.date.today(), what and what + "-", cpu))


def number(value):
    if value is None:
        return "-"
    return "%.0f" % value if value >= 100 else "%.1f" % value if value >= 10 else "%.2f" % value


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


class Server:
    """A server as a child process, ready when /health says 200; start_s is how long that took.
    `command` gets the port with {port} in it. cwd: for servers that leave files where they stand."""

    def __init__(self, command, home, timeout_s=120, cwd=None):
        self.port = free_port()
        self.log = open(os.path.join(home, "server.log"), "ab")
        begin = time.perf_counter()
        self.process = subprocess.Popen([c.format(port=self.port) for c in command],
                                        env=dict(os.environ, HOME=home), cwd=cwd, stdout=self.log,
                                        stderr=self.log)
        atexit.register(self.stop)  # also when a bench fails half-way
        while True:
            try:
                with urllib.request.urlopen(self.url("/health"), timeout=2) as r:
                    if r.status == 200:
                        break
            except OSError:
                pass
            if time.perf_counter() - begin > timeout_s or self.process.poll() is not None:
                self.stop()
                sys.exit("the server did not start; its log: %s" % self.log.name)
            time.sleep(0.002)
        self.start_s = time.perf_counter() - begin

    def url(self, path):
        return "http://127.0.0.1:%d%s" % (self.port, path)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def get(self, path):
        with urllib.request.urlopen(self.url(path), timeout=30) as r:
            return json.load(r)

    def post(self, path, body):
        request = urllib.request.Request(self.url(path), json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as r:
                return json.load(r)
        except urllib.error.HTTPError as e:
            raise OSError("POST %s: %s" % (path, e.read().decode())) from e

    def complete(self, text, n_tokens):
        """A plain completion, which needs no chat template."""
        return self.post("/v1/completions", {"prompt": text, "max_tokens": n_tokens, "temperature": 0})

    def memory_kib(self, name):
        """VmRSS (now) or VmHWM (peak)."""
        with open("/proc/%d/status" % self.process.pid) as f:
            for line in f:
                if line.startswith(name + ":"):
                    return int(line.split()[1])
        return 0

    def stream(self, text, **fields):
        """Yields the parsed chunks of a streamed chat answer. text: or a list of messages; or a list
        of token ids, for a plain completion. Whoever closes the generator hangs up."""
        is_plain = isinstance(text, list) and isinstance(text[0], int)
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        body = {"prompt" if is_plain else "messages": messages, "stream": True, "temperature": 0,
                "stream_options": {"include_usage": True}, **fields}
        path = "/v1/completions" if is_plain else "/v1/chat/completions"
        request = urllib.request.Request(self.url(path), json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])


def has_text(chunk):
    return any(c.get("text") or c.get("delta", {}).get("content") for c in chunk.get("choices", []))
