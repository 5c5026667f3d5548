# SPDX-License-Identifier: MIT
"""Runs the built program as its users do. Each server gets a free port and a temporary HOME; a
fixture ends exactly the processes that it started. MTPLX_BIN names the program (else build/mtplx),
MTPLX_TEST_MODEL the model (else where `make start` puts it), MTPLX_TEST_WRITER the writer of the
hybrid model (else build-check/tests/write_hybrid)."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from pytest_env import skip_or_fail  # noqa: E402

BIN = pathlib.Path(os.environ.get("MTPLX_BIN") or ROOT / "build" / "mtplx").resolve()
MODEL = pathlib.Path(
    os.environ.get("MTPLX_TEST_MODEL")
    or pathlib.Path.home() / ".mtplx/models/SmolLM2-135M-Instruct.Q4_1.gguf"
).resolve()
WRITER = pathlib.Path(os.environ.get("MTPLX_TEST_WRITER") or ROOT / "build-check/tests/write_hybrid")
# Root may write everywhere, unless it gives up that right.
OBEY_MODES = ["setpriv", "--bounding-set", "-dac_override"] if os.getuid() == 0 else []
EXACT = ["--ssd-restore", "always", "--canonical-prompts"]
START_TIMEOUT_S = 60

WORDS = (
    "river stone market winter letter garden engine copper window silver morning harbor ticket "
    "orange planet doctor bridge forest candle mirror pocket summer island thunder basket"
).split()


def text_of(seed, n_words):
    """Deterministic prose of n_words words; about 1.1 tokens each."""
    state = seed * 2654435761 % 2**32 or 1
    out = []
    for i in range(n_words):
        state = (1103515245 * state + 12345) % 2**31
        out.append(WORDS[(state >> 8) % len(WORDS)] + ("." if i % 9 == 8 else ""))
    return " ".join(out)


def call_text(town, days):
    return ('<tool_call>\n{"name": "get_weather", "arguments": {"town": "%s", "days": %d}}\n'
            "</tool_call>" % (town, days))


def weather_chat():
    """With three examples the small model makes the fourth call."""
    chat = [{"role": "system", "content": "You call tools."}]
    for town, days in (("Paris", 2), ("Rome", 5), ("Berlin", 4)):
        chat += [{"role": "user", "content": f"Weather in {town} for {days} days?"},
                 {"role": "assistant", "content": call_text(town, days)}]
    return chat + [{"role": "user", "content": "Weather in Oslo for 3 days?"}]


class Server:
    def __init__(self, home, args=(), env=None, port=0, wait=True, model=MODEL, before=()):
        self.home = pathlib.Path(home)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MTPLX_")}
        environment.update(HOME=str(home), **(env or {}))
        command = [*before, str(BIN), "start", "--model", str(model), "--port", str(port), "--kv-budget",
                   "512M", *args]
        self.process = subprocess.Popen(command, env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.log_lines, self.out_lines = [], []
        self.is_ready = threading.Event()
        self.url = f"http://127.0.0.1:{port}"
        self.threads = [threading.Thread(target=self._collect, args=a, daemon=True) for a in
                        ((self.process.stdout, self.out_lines), (self.process.stderr, self.log_lines))]
        for t in self.threads:
            t.start()
        if wait:
            self.wait_ready()

    def _collect(self, pipe, lines):
        for line in pipe:
            lines.append(line)
            found = re.search(r" serves .* at (http://\S+)", line)
            if found:
                self.url = found.group(1)
                self.is_ready.set()

    def wait_ready(self):
        until = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready.wait(0.02):
            assert self.process.poll() is None, f"the server ended: {self.log}"
            assert time.monotonic() < until, f"not ready: {self.log}"

    @property
    def log(self):
        return "".join(self.log_lines)

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path, **kw):
        return requests.get(self.url + path, timeout=30, **kw)

    def post(self, path, body, timeout=60, **kw):
        return requests.post(self.url + path, json=body, timeout=timeout, **kw)

    def chat(self, messages, headers=None, **fields):
        """A greedy answer; fails the test when it is not 200."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": "mtplx", "messages": messages, "temperature": 0, "max_tokens": 8, **fields}
        r = self.post("/v1/chat/completions", body, headers=headers)
        assert r.status_code == 200, r.text
        return Answer(r.json())

    def stream(self, messages, **fields):
        """Events of a streamed answer as objects; the last is the string [DONE]."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": "mtplx", "messages": messages, "temperature": 0, "max_tokens": 8,
                "stream": True, **fields}
        events = []
        with requests.post(self.url + "/v1/chat/completions", json=body, stream=True,
                           timeout=60) as r:
            assert r.status_code == 200, r.text
            for line in r.iter_lines():
                if line.startswith(b"data: "):
                    data = line[6:].decode()
                    events.append(data if data == "[DONE]" else json.loads(data))
        return events

    def info(self, headers=None):
        return self.get("/info", headers=headers).json()

    def wait_for(self, what, condition, seconds=10, headers=None):
        until = time.monotonic() + seconds
        while True:
            info = self.info(headers)
            if condition(info):
                return info
            assert time.monotonic() < until, f"waited for {what}: {json.dumps(info, indent=1)}"
            time.sleep(0.01)

    def wait_durable(self, headers=None):
        return self.wait_for("the cold tier's writer", lambda i: i["ssd"]["queued_jobs"] == 0
                             and i["ssd"]["sessions_written"] > 0, headers=headers)

    def open_socket(self, body, rcvbuf=None):
        """Sends a chat request and leaves its socket to the test."""
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(60)
        s.connect(("127.0.0.1", self.port))
        data = json.dumps(body).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
                  % len(data) + data)
        return s

    def send(self, number):
        self.process.send_signal(number)

    def stop(self, number=signal.SIGTERM, timeout=40):
        """A clean end; returns the exit code."""
        self.send(number)
        code = self.process.wait(timeout)
        for t in self.threads:
            t.join(5)
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)


class Answer:
    def __init__(self, body):
        self.body = body
        self.text = body["choices"][0]["message"]["content"]
        self.finish = body["choices"][0]["finish_reason"]
        self.usage = body["usage"]
        self.mode = self.usage["cache_mode"]
        self.cache = self.usage["cache"]
        self.cached = self.usage["prompt_tokens_details"]["cached_tokens"]
        self.prompt = self.usage["prompt_tokens"]
        parts = [self.cache[k] for k in ("ram_tokens", "ssd_tokens", "computed_tokens")]
        assert sum(parts) == self.prompt, self.usage
        assert self.cached == parts[0] + parts[1], self.usage
        assert self.usage["total_tokens"] == self.prompt + self.usage["completion_tokens"]


@pytest.fixture(scope="session", autouse=True)
def material():
    if not BIN.exists():
        skip_or_fail(f"missing: {BIN} (build first, or set MTPLX_BIN)")
    if not MODEL.exists():
        skip_or_fail(f"missing: {MODEL} (`make start` fetches it, or set MTPLX_TEST_MODEL)")


@pytest.fixture
def start(tmp_path):
    """start(args...) -> Server, with one HOME for the whole test."""
    home = tmp_path / "home"
    home.mkdir()
    servers = []

    def run(*args, **kw):
        servers.append(Server(kw.pop("home", home), args, **kw))
        return servers[-1]

    yield run
    for s in servers:
        s.kill()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """One server with default options for tests that leave no trace in it."""
    server = Server(tmp_path_factory.mktemp("home"), ["--ssd-session-cache", "off"])
    yield server
    server.kill()


def run_mtplx(*args, home=None, env=None, timeout=20, before=()):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MTPLX_")}
    environment.update({"HOME": str(home)} if home else {}, **(env or {}))
    return subprocess.run([*before, str(BIN), *args], env=environment, text=True, capture_output=True,
                          timeout=timeout)
