# SPDX-License-Identifier: MIT
"""The server as a process: starting, refusing to start, limits, hang-ups, ending."""

import json
import re
import signal
import socket
import threading
import time

import pytest
import requests

from conftest import EXACT, MODEL, run_mtplx, text_of

LONG = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "temperature": 0,
        "max_tokens": 3000, "ignore_eos": True}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def watch_start(start):
    """A server, and what /health said from its start until it was ready. Another program may take the
    port in between; then a new one is chosen."""
    for _ in range(5):
        port = free_port()
        s = start("--ssd-session-cache", "off", port=port, wait=False)
        seen = watch_health(s, port)
        if seen is not None:
            return s, seen
    raise AssertionError(f"no port was free: {s.log}")


def watch_health(s, port):
    seen = []
    until = time.monotonic() + 60
    while not seen or seen[-1] != 200:
        assert time.monotonic() < until, seen
        if s.process.poll() is not None:
            assert f"port {port} on 127.0.0.1 is in use" in s.log, s.log
            return None
        try:
            r = requests.get(f"http://127.0.0.1:{port}/health", timeout=5)
        except requests.ConnectionError:
            continue
        seen.append(r.status_code)
        if r.status_code == 503:
            assert r.json()["error"]["type"] == "unavailable_error" and r.headers["Retry-After"]
            early = requests.post(f"http://127.0.0.1:{port}/v1/chat/completions", timeout=20, json={
                "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
            assert early.status_code in (503, 200), early.text  # 200: it became ready in between
    return seen


def test_health_is_503_until_ready(start):
    # The model is there after a tenth of a second; on a busy machine that can go by unseen.
    seen = []
    for _ in range(10):
        s, seen = watch_start(start)
        s.wait_ready()
        if 503 in seen:
            break
        s.stop()
    assert set(seen) == {503, 200}, "loading was never seen"
    assert s.chat("Hi", max_tokens=1).finish
    text = "".join(s.out_lines)
    assert "curl http://127.0.0.1:" in text and "/v1/chat/completions" in text


def test_refuses_to_start(tmp_path):
    rows = [
        (["start", "--model", str(MODEL), "--host", "0.0.0.0"], {}, 2, "MTPLX_API_KEY"),
        (["start"], {}, 1, "make start"),
        (["start", "--model", str(tmp_path / "none.gguf")], {}, 1, "none.gguf"),
        (["start", "--prot", "1"], {}, 2, "--prot"),
        (["start", "--port", "banana"], {}, 2, "--port"),
        (["start"], {"MTPLX_SESSION_LAZY_SNAPSHOT": "2"}, 2, "MTPLX_SESSION_LAZY_SNAPSHOT"),
        (["start"], {"MTPLX_SESSION_SNAPSHOT_SETTLE": "x"}, 2, "MTPLX_SESSION_SNAPSHOT_SETTLE"),
        (["start"], {"MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP": "-3"}, 2, "NEAR_PREFIX_MAX_TOKEN_GAP"),
        (["start"], {"MTPLX_SESSION_BOUNDARY_TRUE_RESTORE": ""}, 2, "BOUNDARY_TRUE_RESTORE"),
        (["frobnicate"], {}, 2, "there is no command `frobnicate`"),
    ]
    for args, env, code, words in rows:
        done = run_mtplx(*args, home=tmp_path, env=env)
        assert done.returncode == code and words in done.stderr, (args, env, done)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(MODEL.read_bytes()[:100000])
    done = run_mtplx("start", "--model", str(broken), "--port", "0", home=tmp_path)
    assert done.returncode == 1 and "error" in done.stderr, done


def test_port_in_use(shared, tmp_path):
    done = run_mtplx("start", "--model", str(MODEL), "--port", str(shared.port), home=tmp_path)
    assert done.returncode == 1 and str(shared.port) in done.stderr, done


def test_small_commands(tmp_path):
    assert run_mtplx("--version").stdout.startswith("mtplx ")
    assert "--ssd-session-cache" in run_mtplx("help", "start").stdout
    assert "--ssd-session-cache" in run_mtplx("start", "--help").stdout
    assert "start" in run_mtplx("help").stdout
    assert "best level" in run_mtplx("inspect", "--cpu").stdout
    assert run_mtplx().returncode == 2
    for args in (("srve",), ("help", "srve"), ("help", "start", "srve")):
        r = run_mtplx(*args)
        assert r.returncode == 2 and "`srve`" in r.stderr and not r.stdout, args


def test_bench_model(tmp_path):
    args = ("bench", "model", str(MODEL), "--prompt", "70", "--gen", "3", "--depth", "70", "--batch", "2",
            "--repeat", "2", "--no-roof", "--threads", "1")
    r = json.loads(run_mtplx(*args, "--json", home=tmp_path, timeout=60).stdout)
    assert r["threads"] == 1 and r["architecture"] == "llama"
    for kind, tokens in (("prefill", 70), ("decode", 3)):
        rates = r[kind]["rates"]
        assert r[kind]["tokens"] == tokens and len(rates) == 2 and min(rates) > 0
        assert r[kind]["median"] == max(rates)
    assert r["decode"]["batch"] == 2 and r["decode"]["depth"] == 70
    assert 0.5 < r["weight_bytes"] / MODEL.stat().st_size < 1
    text = run_mtplx(*args, home=tmp_path, timeout=60).stdout
    assert "prefill 70:" in text and "decode 3 x 2 at 70:" in text
    for option, word in (("--kv-type", "q8"), ("--kv-type", "f32"), ("--activations", "8")):
        r = run_mtplx(*args, option, word, home=tmp_path, timeout=60)
        assert r.returncode == 0 and "prefill 70:" in r.stdout, (option, word, r)
    for wrong in (("bench",), ("bench", "model"), ("bench", "model", str(MODEL), "--depht", "1"),
                  ("bench", "roof", "--threads", "0x")):
        r = run_mtplx(*wrong, home=tmp_path)
        assert r.returncode == 2 and "mtplx: " in r.stderr and not r.stdout, wrong
    missing = run_mtplx("bench", "model", str(tmp_path / "no.gguf"), home=tmp_path)
    assert missing.returncode == 1 and "no.gguf" in missing.stderr


def test_session_variables_are_shown(start):
    s = start("--ssd-session-cache", "off", env={
        "MTPLX_SESSION_LAZY_SNAPSHOT": "0", "MTPLX_SESSION_SNAPSHOT_SETTLE": "1",
        "MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP": "3", "MTPLX_SESSION_BOUNDARY_TRUE_RESTORE": "0"})
    assert list(s.info()["session"].values()) == [0, 1, 3, 0]
    prompt = text_of(50, 80)
    cold, warm = s.chat(prompt), s.chat(prompt)
    assert warm.mode == "warm_prefix" and cold.text == warm.text


def test_keys_origin_host(start):
    s = start("--ssd-session-cache", "off", "--strict-model", "--allowed-origin", "https://good.example",
              env={"MTPLX_API_KEY": "secret-one,secret-two", "MTPLX_ADMIN_KEY": "secret-admin"})
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    url = s.url + "/v1/chat/completions"
    assert s.get("/health").status_code == 200
    for headers, status in [
        ({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer secret-on"}, 401), ({"Authorization": "Bearer secret-one,secret-two"}, 401),
        ({"Authorization": "Bearer secret-one"}, 200), ({"Authorization": "Bearer secret-two"}, 200),
        ({"x-api-key": "secret-two"}, 200), ({"api-key": "secret-two"}, 200),
    ]:
        r = requests.post(url, json=body, headers=headers, timeout=30)
        assert r.status_code == status, (headers, r.text)
        if status == 401:
            assert r.json()["error"]["type"] == "authentication_error"
    key = {"Authorization": "Bearer secret-one"}
    assert s.get("/info").status_code == 401
    info = s.get("/info", headers={"Authorization": "Bearer secret-admin"})
    assert info.status_code == 200 and info.json()["options"]["admin-key"] == "set"
    assert "secret" not in info.text and "secret" not in s.log
    for headers, ok in [({"Origin": "https://evil.example"}, False), ({"Origin": "null"}, False),
                        ({"Origin": "https://good.example"}, True),
                        ({"Origin": "http://localhost:3000"}, True), ({"Host": "evil.example"}, False),
                        ({"Host": "localhost"}, True)]:
        r = requests.post(url, json=body, headers={**key, **headers}, timeout=30)
        assert (r.status_code == 200) == ok and r.status_code in (200, 403, 421), (headers, r.text)
    pre = requests.options(url, headers={"Origin": "https://good.example",
                                         "Access-Control-Request-Method": "POST"})
    assert pre.status_code == 204
    assert pre.headers["Access-Control-Allow-Origin"] in ("https://good.example", "*")
    refused = requests.post(url, json={**body, "model": "gpt-4"}, headers=key)
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
    for name in ("mtplx", MODEL.stem, MODEL.name):
        assert requests.post(url, json={**body, "model": name}, headers=key).status_code == 200


def test_too_long_a_prompt(start):
    s = start("--max-context", "256", *EXACT)
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text_of(1, 400)}]})
    error = r.json()["error"]
    assert r.status_code == 400 and error["code"] == "context_length_exceeded", r.text
    assert error["n_ctx"] == 256 and error["n_prompt_tokens"] > 256
    assert f"request ({error['n_prompt_tokens']} tokens) exceeds the available context size" in error["message"]
    assert "maximum context length is 256 tokens" in error["message"]
    fits = s.chat(text_of(1, 150), max_tokens=100000, ignore_eos=True)
    assert fits.finish == "length" and fits.prompt + fits.usage["completion_tokens"] == 256


def test_a_prompt_that_memory_cannot_hold(start):
    """Refused at once and with the numbers, though the model's context would be long enough."""
    s = start("--kv-budget", "8M", "--ssd-session-cache", "off")
    running = s.open_socket({**LONG, "stream": True, "max_tokens": 100})
    begin = time.monotonic()
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text_of(1, 900)}]})
    waited = time.monotonic() - begin
    error = r.json()["error"]
    assert r.status_code == 400 and error["code"] == "context_length_exceeded", r.text
    n_ctx, n_prompt = error["n_ctx"], error["n_prompt_tokens"]
    assert n_ctx % 64 == 0 and n_ctx < n_prompt < 8192
    assert f"request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens)" in error["message"]
    assert "--kv-budget" in error["message"] and "MiB" in error["message"]
    needed, there = (float(x) for x in re.findall(r"([\d.]+) MiB", error["message"]))
    assert there <= 8 < needed and abs(needed / there - (n_prompt + 1) / n_ctx) < 0.05
    assert waited < 5, waited
    assert s.chat(text_of(2, n_ctx // 2)).finish == "length"  # what fits is served, in its turn
    running.close()


def test_hopeless_prompts_are_refused_quickly(shared):
    """Several huge bodies at once must not keep the workers busy: others wait behind them."""
    huge = "hello world " * 850_000
    waits, ended = [], threading.Event()

    def watch():
        while not ended.is_set():
            begin = time.monotonic()
            assert shared.get("/health").status_code == 200
            waits.append(time.monotonic() - begin)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.monotonic()
    for path, body, field in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": huge}]}, "messages"),
            ("/v1/completions", {"prompt": huge}, "prompt"),
            ("/v1/completions", {"prompt": ["x", huge]}, "prompt")):
        error = shared.post(path, body).json()["error"]
        assert error["code"] == "context_length_exceeded" and error["param"] == field, error
        assert error["n_prompt_tokens"] > error["n_ctx"] == 8192, error
        assert "exceeds the available context size (8192 tokens)" in error["message"], error
        assert "at least" in error["message"], "it was tokenised to be counted"
    took = time.monotonic() - begin
    ended.set()
    watcher.join()
    assert took < 10 and max(waits) < 5, (took, max(waits))


def hang_up_times(s, body, is_running):
    times = []
    for _ in range(3):
        sock = s.open_socket(body)
        s.wait_for("the request to run", is_running)
        begin = time.monotonic()
        sock.close()
        s.wait_for("its end", lambda i: i["engine"]["n_running"] == 0)
        times.append(time.monotonic() - begin)
    return times


@pytest.mark.parametrize("stream", [True, False])
def test_hang_up_cancels(shared, stream):
    times = hang_up_times(shared, {**LONG, "stream": stream},
                          lambda i: i["engine"]["n_running"] == 1)
    assert min(times) < 0.1, times  # the best of three: the machine may be busy


def test_hang_up_in_prefill_cancels(shared):
    body = {"messages": [{"role": "user", "content": text_of(9, 3000)}], "max_tokens": 1, "cache": "off"}
    times = hang_up_times(shared, body, lambda i: i["engine"]["n_running"] == 1)
    assert min(times) < 0.1, times


def test_slow_reader_stops_nobody_else(shared):
    body = {**LONG, "max_tokens": 150, "stream": True, "logprobs": True, "top_logprobs": 20}
    slow = shared.open_socket(body, rcvbuf=4096)
    for i in range(3):
        assert shared.chat(f"Hello {i}", max_tokens=4).finish
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        part = slow.recv(65536)
        assert part, data[-200:]
        data += part
    slow.close()
    assert b"data: [DONE]" in data and b'"finish_reason":"length"' in data
    assert data.count(b'"bytes"') > 150 * 20


def test_queue_full(start):
    s = start("--max-batch", "1", "--max-queued", "1", "--ssd-session-cache", "off")
    first = s.open_socket({**LONG, "stream": True})
    s.wait_for("one running", lambda i: i["engine"]["n_running"] == 1)
    second = s.open_socket({**LONG, "stream": True})
    s.wait_for("one queued", lambda i: i["engine"]["n_queued"] == 1)
    third = s.post("/v1/chat/completions", LONG)
    assert third.status_code == 503 and int(third.headers["Retry-After"]) > 0, third.text
    assert third.json()["error"]["code"] == "queue_full"
    waiting = b""
    begin = time.monotonic()
    while b"\n: keep-alive\n" not in waiting:  # silence while it waits is broken every 10 s
        waiting += second.recv(4096)
    assert 8 < time.monotonic() - begin < 13, waiting
    assert b'"role":"assistant"' in waiting and b'"content":"' in waiting
    second.close()
    s.wait_for("the queue to empty", lambda i: i["engine"]["n_queued"] == 0)
    assert s.info()["engine"]["n_running"] == 1  # cancelling a queued one leaves the running one
    first.close()
    s.wait_for("the end", lambda i: i["engine"]["n_running"] == 0)
    assert s.chat("Hi", max_tokens=1).finish


@pytest.mark.parametrize("number,code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_second_signal_ends_at_once(start, number, code):
    s = start("--ssd-session-cache", "off", "--shutdown-drain", "60")
    sock = s.open_socket({**LONG, "stream": True})
    s.wait_for("one running", lambda i: i["engine"]["n_running"] == 1)
    s.send(number)
    time.sleep(0.3)
    assert s.process.poll() is None, "it did not wait for the running answer"
    begin = time.monotonic()
    assert s.stop(number) == code
    assert time.monotonic() - begin < 2
    sock.close()


def test_a_signal_of_others_changes_nothing(start):
    s = start("--ssd-session-cache", "off")
    s.send(signal.SIGUSR1)
    assert s.chat("Hi", max_tokens=1).finish
    assert s.stop() == 0


def test_shutdown_lets_answers_end(start):
    s = start(*EXACT)
    result = {}

    def ask():
        result["answer"] = s.chat("Count to twenty.", max_tokens=40, ignore_eos=True)

    t = threading.Thread(target=ask)
    t.start()
    s.wait_for("one running", lambda i: i["engine"]["n_running"] == 1)
    assert s.stop() == 0
    t.join()
    assert result["answer"].usage["completion_tokens"] == 40
    assert "[mtplx] shutdown: SSD session cache flushed\n" in s.log_lines


def test_shutdown_cancels_what_takes_too_long(start):
    s = start("--shutdown-drain", "0", *EXACT)
    sock = s.open_socket({**LONG, "stream": True})
    s.wait_for("one running", lambda i: i["engine"]["n_running"] == 1)
    assert s.stop(signal.SIGINT, timeout=15) == 0
    data = b""
    while part := sock.recv(65536):
        data += part
    assert b'data: {"error":' in data and b"[DONE]" not in data
    assert "[mtplx] shutdown: SSD session cache flushed\n" in s.log_lines


def test_log_line(start):
    s = start(*EXACT)
    prompt = text_of(60, 60)
    s.chat(prompt)
    s.chat(prompt)
    s.post("/v1/chat/completions", {"messages": []})
    assert s.stop() == 0  # so that all lines have come
    lines = [line for line in s.log_lines if line.startswith("[mtplx] request: ")]
    assert len(lines) == 3, s.log
    assert "status=200" in lines[0] and "cache_mode=cold ctx=0+0+" in lines[0]
    assert "cache_mode=warm_prefix ctx=" in lines[1] and "finish=" in lines[1]
    assert "status=400" in lines[2] and "param=messages" in lines[2]
    assert "river" not in s.log and "stone" not in s.log
