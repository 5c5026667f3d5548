# SPDX-License-Identifier: MIT
"""Keys, isolation, and what an administrator sees: everything here is about who may know what."""

import fcntl
import http.server
import json
import os
import threading
import time

import pytest
import requests

from conftest import EXACT, OBEY_MODES, run_mtplx, skip_or_fail, text_of

try:
    from prometheus_client import parser
except ImportError:
    parser = None


def key(name):
    return {"Authorization": "Bearer " + name}


def conversation(seed, n_words=90):
    return [{"role": "system", "content": "You are a helpful storyteller. " + text_of(seed, n_words)},
            {"role": "user", "content": "Tell me about the first thing in your notes."}]


def usage(s, messages, name=None, **fields):
    body = {"messages": messages, "temperature": 0, "max_tokens": 4, **fields}
    r = s.post("/v1/chat/completions", body, headers=key(name) if name else None)
    assert r.status_code == 200, r.text
    return r.json()["usage"]


def modes(s, messages, *names):
    return [usage(s, messages, n)["cache_mode"] for n in names]



@pytest.fixture
def start_keyed(start):
    def run(*args, **kw):
        s = start("--api-key", "key-one", "--api-key", "key-two", *EXACT, *args, **kw)
        return s
    return run


def test_prefixes_of_keys_stay_apart(start_keyed):
    chat = conversation(1)
    s = start_keyed()
    assert modes(s, chat, "key-one", "key-two", "key-one", "key-two") == [
        "cold", "cold", "warm_prefix", "warm_prefix"]
    assert s.stop() == 0
    folder = s.home / ".mtplx/session_cache"
    secret = (folder / "cache.key").read_text().strip()
    assert os.stat(folder / "cache.key").st_mode & 0o777 == 0o600 and len(secret) == 64
    assert secret not in s.log and "key-one" not in s.log

    s = start_keyed()  # the same keys find their own prefixes on disk, and only those
    assert modes(s, chat, "key-one", "key-two") == ["ssd", "ssd"]
    other = conversation(2)  # shares its first words with the chat before, under both keys
    reused = [usage(s, other, n)["prompt_tokens_details"]["cached_tokens"]
              for n in ("key-one", "key-two", "key-two")]
    assert reused[0] == reused[1] < 20 and reused[2] > 90
    assert s.stop() == 0

    (folder / "cache.key").unlink()  # without the secret nothing is found again
    s = start_keyed()
    assert modes(s, chat, "key-one") == ["cold"]
    assert s.stop() == 0


def test_shared_prefixes(start_keyed):
    chat = conversation(3)
    s = start_keyed("--shared-prefixes")
    assert modes(s, chat, "key-one", "key-two") == ["cold", "warm_prefix"]
    assert s.stop() == 0
    assert not (s.home / ".mtplx/session_cache/cache.key").exists()


def test_cache_key_file(start_keyed, tmp_path):
    chat = conversation(4)
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef" * 2)
    secret.chmod(0o644)
    bad = run_mtplx("start", "--model", "/dev/null", "--api-key", "k", "--cache-key-file", str(secret),
                    home=tmp_path)
    assert bad.returncode == 1 and "chmod 600" in bad.stderr
    secret.chmod(0o600)
    s = start_keyed("--cache-key-file", str(secret))
    assert modes(s, chat, "key-one") == ["cold"]
    assert s.stop() == 0
    assert not (s.home / ".mtplx/session_cache/cache.key").exists()
    s = start_keyed("--cache-key-file", str(secret))
    assert modes(s, chat, "key-one", "key-two") == ["ssd", "cold"]


def test_key_file(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# team\nkey-one\nkey-two\n")
    keys.chmod(0o644)
    bad = run_mtplx("start", "--model", "/dev/null", "--api-key-file", str(keys), home=tmp_path)
    assert bad.returncode == 1 and "chmod 600" in bad.stderr
    keys.chmod(0o600)
    s = start("--api-key-file", str(keys), "--ssd-session-cache", "off")
    for name, status in (("key-one", 200), ("key-two", 200), ("# team", 401), ("key-three", 401)):
        r = s.post("/v1/chat/completions", {"messages": conversation(5, 5), "max_tokens": 1},
                   headers=key(name))
        assert r.status_code == status, name
    keys.write_text("\n")
    bad = run_mtplx("start", "--model", "/dev/null", "--api-key-file", str(keys), home=tmp_path)
    assert bad.returncode == 1 and "has no key" in bad.stderr


# ---- who may go where ----------------------------------------------------------------------------

ADMIN_PATHS = ["/info", "/v1/info", "/metrics", "/admin/cache/lookup", "/admin/cache", "/admin",
               "/admin/cache/" + "0" * 64, "//metrics/", "/%6detrics", "/metrics?x=1"]


@pytest.mark.parametrize("keys,admin", [(False, False), (True, False), (False, True), (True, True)])
def test_auth_matrix(start, keys, admin):
    args = ["--ssd-session-cache", "off"]
    env = {**({"MTPLX_API_KEY": "the-api-key"} if keys else {}),
           **({"MTPLX_ADMIN_KEY": "the-admin-key"} if admin else {})}
    s = start(*args, env=env)
    senders = {"none": {}, "wrong": key("the-admin-keys"), "empty": key(""), "api": key("the-api-key"),
               "admin": key("the-admin-key"), "admin-x": {"x-api-key": "the-admin-key"}}
    for path in ADMIN_PATHS:
        for method in ("GET", "POST", "DELETE"):
            for sender, headers in senders.items():
                r = requests.request(method, s.url + path, headers=headers, timeout=30)
                where = (method, path, sender, r.status_code, r.text[:200])
                if not keys and not admin:
                    assert r.status_code not in (401, 403), where
                elif not admin:
                    assert r.status_code == 404, where
                elif sender.startswith("admin"):
                    assert r.status_code not in (401, 403), where
                elif sender == "api" and keys:
                    assert r.status_code == 403, where
                else:
                    assert r.status_code == 401, where
                assert "the-a" not in r.text, where
    for sender, headers in senders.items():
        r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=headers)
        assert r.status_code == (200 if not keys or sender == "api" else 401), sender
    assert s.get("/health").status_code == 200
    assert "the-a" not in s.log


# ---- explanations ---------------------------------------------------------------------------------

def lookup(s, body, headers=None, status=200):
    r = s.post("/admin/cache/lookup", body, headers=headers)
    assert r.status_code == status, r.text
    return r.json()["prompts"][0] if status == 200 else r.json()["error"]


def test_miss_explained(start):
    s = start(*EXACT)
    chat = conversation(10)
    first = usage(s, chat)["cache"]["miss"]
    assert first["reason"] == "no_entry" and first["token_index"] == 0 and first["cost_ms"] > 0
    assert first["stored"] is None and first["asked"].startswith("<|im_start|>system")
    assert usage(s, chat)["cache"]["miss"] is None
    changed = [dict(chat[0]), dict(chat[1])]
    words = changed[0]["content"].split(" ")
    words[60] = "zebra"
    changed[0]["content"] = " ".join(words)
    before = lookup(s, {"messages": changed})
    u = usage(s, changed)
    miss = u["cache"]["miss"]
    assert miss["reason"] == "diverged_at"
    assert miss["token_index"] == u["prompt_tokens_details"]["cached_tokens"] > 60
    assert " z" in miss["asked"] and "zebra" not in miss["stored"]
    original = chat[0]["content"]
    assert miss["stored"].strip() in original and miss["asked"].strip() in changed[0]["content"]
    # The lookup had said the same, and changed nothing.
    assert before["miss"]["reason"] == "diverged_at"
    assert (before["miss"]["stored"], before["miss"]["asked"]) == (miss["stored"], miss["asked"])
    assert [before[k] for k in ("ram_tokens", "ssd_tokens", "computed_tokens")] == [
        u["cache"][k] for k in ("ram_tokens", "ssd_tokens", "computed_tokens")]
    off = usage(s, chat, cache="off")["cache"]["miss"]
    assert off["reason"] == "cache_off" and off["stored"] is None


def test_lookup_on_disk(start):
    chat = conversation(11)
    s = start(*EXACT)
    assert lookup(s, {"messages": chat})["miss"]["reason"] == "no_entry"
    cold = usage(s, chat)
    assert s.stop() == 0
    s = start(*EXACT)
    found = lookup(s, {"messages": chat, "max_tokens": 4})
    assert found["cache_mode"] == "ssd" and found["ssd_answered"] and found["ssd_bytes"] > 10000
    assert found["compute_ms"] is None  # nothing was computed yet: no rate is known
    again = lookup(s, {"messages": chat})
    assert again == found  # it has read nothing into RAM
    u = usage(s, chat)
    assert u["cache"]["ssd_tokens"] == found["ssd_tokens"] >= cold["prompt_tokens"] - 64
    warm = lookup(s, {"messages": chat})
    assert warm["cache_mode"] == "warm_prefix" and warm["miss"] is None and warm["restore_ms"] == 0
    text = lookup(s, {"prompt": "Once upon a time"})
    assert text["prompt_tokens"] == 4 and text["computed_tokens"] == 4
    assert text["compute_ms"] is None or text["compute_ms"] > 0
    off = lookup(s, {"messages": chat, "cache": "off"})
    assert off["miss"]["reason"] == "cache_off" and off["computed_tokens"] == off["prompt_tokens"]
    # A damaged file is found out when it is wanted; then its reason is told.
    assert s.stop() == 0
    pages = sorted((s.home / ".mtplx/session_cache").rglob("*.page"))
    for p in pages:
        data = bytearray(p.read_bytes())
        data[5000] ^= 1
        p.write_bytes(data)
    s = start(*EXACT)
    u = usage(s, chat)
    assert u["cache"]["miss"]["reason"] == "quarantined" and u["cache_mode"] == "cold"


def test_lookup_hostile(start):
    s = start("--ssd-session-cache", "off")
    for body in ({}, {"messages": []}, {"messages": "x"}, {"prompt": ""}, {"prompt": [-1]},
                 {"prompt": [10**9]}, {"prompt": []}, {"messages": [{"role": "user", "content": "x"}],
                                                       "temperature": "hot"}):
        assert lookup(s, body, status=400)["message"]
    for text in ("", "[]", "null", "{", '{"prompt":"x"} x', "\xff"):
        r = requests.post(s.url + "/admin/cache/lookup", data=text.encode("latin-1"), timeout=30)
        assert r.status_code == 400, (text, r.text)
    assert requests.get(s.url + "/admin/cache/lookup", timeout=30).status_code == 405
    for path in ("/admin/", "/admin/x", "/admin/cache/lookup/x", "/admin/../info/x"):
        assert s.get(path).status_code == 404, path
    huge = lookup(s, {"prompt": [5] * 200000}, status=400)
    assert huge["code"] == "context_length_exceeded" and huge["param"] == "prompt"
    assert "shorten 'prompt'" in huge["message"] and huge["n_prompt_tokens"] == 200000
    many = s.post("/admin/cache/lookup", {"prompt": ["a b c", "d e f"]}).json()["prompts"]
    assert len(many) == 2


def test_nothing_leaks_between_keys(start_keyed):
    """Neither usage nor its explanation differs between "another key has stored this" and "nobody
    has"; the administrator learns that there is something, but not what."""
    s = start_keyed(env={"MTPLX_ADMIN_KEY": "root"})
    chat = conversation(12)
    fresh = usage(s, conversation(13), "key-two")
    secret = "the password is swordfish"
    chat[0]["content"] = chat[0]["content"].replace("helpful storyteller.", secret + ".")
    usage(s, chat, "key-one")
    guess = [dict(m) for m in chat]
    guess[0]["content"] = guess[0]["content"].replace("swordfish", "something else")
    for messages in (chat, guess):
        u = usage(s, messages, "key-two", cache="no-store")
        miss = u["cache"]["miss"]
        assert miss["reason"] == "diverged_at" and u["cache"]["ssd_tokens"] == 0
        assert miss["token_index"] <= 8  # of what key-two itself has stored
        assert "password" not in (miss["stored"] or "") and "sword" not in (miss["stored"] or "")
    assert fresh["cache"]["miss"]["reason"] == "no_entry"
    admin = key("root")
    assert lookup(s, {"messages": chat}, admin, status=400)["code"] == "api_key_needed"
    assert lookup(s, {"messages": chat}, {**admin, "x-api-key": "no-key"}, 400)["code"] == "api_key_needed"
    own = lookup(s, {"messages": chat}, {**admin, "x-api-key": "key-one"})
    assert own["miss"] is None and own["ram_tokens"] > 90
    other = lookup(s, {"messages": chat}, {**admin, "x-api-key": "key-two"})
    assert other["miss"]["reason"] == "other_isolation"
    assert other["miss"]["stored"] is None and other["ram_tokens"] <= 8
    # A guess that shares a page with it says so, too: that is what the administrator may know.
    new = [{"role": "user", "content": text_of(99, 90)}]
    assert lookup(s, {"messages": new}, {**admin, "x-api-key": "key-two"})["miss"]["reason"] in (
        "diverged_at", "no_entry")


def test_lookup_of_many_prompts_and_keys_is_short(start, tmp_path):
    """The engine is asked twice for a prompt, not once for each key: while it generates, each time is a
    pass, which gives a token. And the whole request has one time limit, as it holds a worker."""
    keys = tmp_path / "keys"
    keys.write_text("".join(f"key-{i}\n" for i in range(64)))
    keys.chmod(0o600)
    s = start("--api-key-file", str(keys), *EXACT, env={"MTPLX_ADMIN_KEY": "root"})
    prompts = [text_of(300 + i, 90) for i in range(15)] + [text_of(400, 90)]
    for name, n in (("key-63", 15), ("key-1", 0)):
        r = s.post("/v1/completions", {"prompt": prompts[n], "max_tokens": 0}, headers=key(name))
        assert r.status_code == 200, r.text
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with requests.post(s.url + "/v1/completions", json=body, headers=key("key-2"), stream=True,
                       timeout=60) as running:
        lines = running.iter_lines()
        assert next(lines).startswith(b"data: ")
        answers = []
        asking = threading.Thread(target=lambda: answers.append(s.post(
            "/admin/cache/lookup", {"prompt": prompts}, headers={**key("root"), "x-api-key": "key-1"})))
        asking.start()
        n_tokens, line = 0, b""
        while asking.is_alive() and line is not None:
            line = next(lines, None)
            n_tokens += bool(line)
        asking.join()
    r = answers[0]
    assert r.status_code == 200, r.text
    assert n_tokens < len(prompts) * 64 / 2, n_tokens
    reasons = [p["miss"]["reason"] if p["miss"] else None for p in r.json()["prompts"]]
    assert reasons[0] is None and reasons[15] == "other_isolation"
    assert set(reasons[1:15]) <= {"no_entry", "diverged_at"}, reasons


def test_shared_prefixes_show_no_foreign_text(start_keyed):
    s = start_keyed("--shared-prefixes")
    chat = conversation(14)
    usage(s, chat, "key-one")
    other = [dict(m) for m in chat]
    other[0]["content"] = other[0]["content"][:150] + " but not this"
    miss = usage(s, other, "key-two")["cache"]["miss"]
    assert miss["reason"] == "diverged_at" and miss["stored"] is None and miss["asked"]


def test_evicted_and_other_model(start, tmp_path):
    s = start("--kv-budget", "16M", "--ssd-session-cache", "off", "--max-context", "512", "--canonical-prompts")
    chat = conversation(20)
    usage(s, chat)
    for i in range(12):
        usage(s, conversation(21 + i))
    miss = usage(s, chat)["cache"]["miss"]
    assert miss["reason"] == "evicted", miss
    assert s.stop() == 0
    s = start(*EXACT)
    usage(s, chat)
    assert s.stop() == 0
    s = start(*EXACT, "--kv-type", "f32")
    assert usage(s, chat)["cache"]["miss"]["reason"] == "other_model"


def test_not_worth_reading(start):
    s = start()
    chat = conversation(40, 60)
    usage(s, chat)
    assert s.stop() == 0
    s = start("--ssd-restore", "always")
    usage(s, chat)  # works, and measures the disk
    assert s.info()["ssd"]["read_bytes_per_us"] > 0


# ---- metrics --------------------------------------------------------------------------------------

def metrics(s, headers=None):
    if parser is None:
        skip_or_fail("missing: python3-prometheus-client")
    r = s.get("/metrics", headers=headers)
    assert r.status_code == 200
    assert r.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    out, families = {}, list(parser.text_string_to_metric_families(r.text))
    assert len({f.name for f in families}) == len(families)
    for f in families:
        assert f.documentation and f.type in ("counter", "gauge"), f
        for sample in f.samples:
            assert sample.name.startswith("mtplx_")
            assert (f.type == "counter") == sample.name.endswith("_total"), sample
            at = (sample.name, tuple(sorted(sample.labels.items())))
            assert at not in out, at
            out[at] = sample.value
    return out


def value(m, name, **labels):
    return m[("mtplx_" + name, tuple(sorted(labels.items())))]


def settled(s, n_requests):
    s.wait_for("the statistics", lambda i: i["engine"]["n_requests"] == n_requests
               and i["engine"]["n_running"] == 0 and i["ssd"].get("queued_jobs", 0) == 0)
    return metrics(s)


def test_metrics_move(start):
    s = start(*EXACT)
    zero = metrics(s)
    counters = {at: v for at, v in zero.items() if at[0].endswith("_total")}
    assert all(v == 0 for at, v in counters.items() if "http" not in at[0]), counters
    assert value(zero, "ready") == 1 and value(zero, "ram_budget_bytes") > 500e6
    chat = conversation(50, 200)
    cold = usage(s, chat)
    one = settled(s, 1)
    assert value(one, "cache_misses_total", reason="no_entry") == 1
    assert value(one, "prompt_tokens_total", source="computed") == cold["prompt_tokens"]
    assert value(one, "prefill_seconds_total") > 0
    assert value(one, "prefill_saved_seconds_total") == 0
    assert value(one, "disk_written_bytes_total") > 0 and value(one, "disk_sessions_written_total") > 0
    assert value(one, "ram_used_bytes") > 0 and value(one, "bank_entries") >= 1
    assert value(one, "disk_used_bytes") >= value(one, "disk_written_bytes_total")
    warm = usage(s, chat)
    two = settled(s, 2)
    reused = warm["prompt_tokens_details"]["cached_tokens"]
    assert value(two, "cache_hits_total", restore="exact_prefix") == 1
    assert value(two, "prompt_tokens_total", source="ram") == reused
    assert value(two, "prefill_saved_seconds_total") > 0
    assert value(two, "restore_seconds_total", tier="ram") > 0
    assert value(two, "disk_saved_bytes_total") > 0  # the same pages again
    assert value(two, "disk_written_bytes_total") - value(one, "disk_written_bytes_total") < (
        value(one, "disk_written_bytes_total") / 2)
    s.post("/v1/chat/completions", {"messages": []})
    s.get("/nothing")
    three = metrics(s)
    assert value(three, "http_responses_total", status="400") == 1
    assert value(three, "http_responses_total", status="404") == 1
    for at, v in two.items():  # a counter never goes back
        assert not at[0].endswith("_total") or three[at] >= v, at
    assert s.stop() == 0
    s = start(*EXACT)
    from_disk = usage(s, chat)
    four = settled(s, 1)
    assert value(four, "prompt_tokens_total", source="ssd") == from_disk["cache"]["ssd_tokens"] > 0
    assert value(four, "restore_seconds_total", tier="ssd") > 0
    assert value(four, "disk_read_bytes_total") > 0
    assert value(four, "disk_quarantined_total") == 0


def test_metrics_of_eviction(start):
    s = start("--kv-budget", "16M", "--ssd-session-cache", "off", "--max-context", "512")
    for i in range(8):
        usage(s, conversation(60 + i))
    m = settled(s, 8)
    assert value(m, "evictions_total", tier="ram", cause="request") + value(
        m, "evictions_total", tier="ram", cause="budget") > 0
    assert not any(at[0].startswith("mtplx_disk") for at in m)
    assert value(m, "ram_used_bytes") <= value(m, "ram_budget_bytes") <= 16 << 20


# ---- entries --------------------------------------------------------------------------------------

def entries(s, headers=None):
    r = s.get("/admin/cache", headers=headers)
    assert r.status_code == 200, r.text
    assert not r.json()["is_cut"]
    return r.json()["data"]


def test_list_pin_delete(start):
    s = start(*EXACT, "--kv-budget", "24M", "--max-context", "512")
    chat = conversation(70)
    u = usage(s, chat)
    s.wait_durable()
    listed = entries(s)
    turn = [e for e in listed if e["kind"] == "turn"]
    assert len(turn) == 1 and turn[0]["tiers"] == ["ram", "ssd"]
    assert turn[0]["tokens"] >= u["prompt_tokens"] and turn[0]["age_s"] < 60
    assert turn[0]["bytes"]["ram"] > 0 and turn[0]["bytes"]["ssd"] > 0 and not turn[0]["isolated"]
    assert all(len(e["id"]) == 64 and e["object"] == "cache.entry" for e in listed)
    assert "helpful" not in s.get("/admin/cache").text
    path = "/admin/cache/" + turn[0]["id"]
    one = s.get(path).json()
    assert one["id"] == turn[0]["id"] and one["tokens"] == turn[0]["tokens"]

    # A pinned entry survives what evicts the others; unpinned it does not.
    assert s.post(path + "/pin", None).json() == {"id": turn[0]["id"], "pinned": True, "in_ram": True,
                                                     "on_disk": True}
    assert s.get(path).json()["pinned"]
    for i in range(14):
        usage(s, conversation(71 + i))
    assert "ram" in s.get(path).json()["tiers"]
    assert usage(s, chat)["cache"]["ssd_tokens"] == 0
    assert s.post(path + "/unpin", None).json()["pinned"] is False
    assert requests.delete(s.url + path + "/pin", timeout=30).json()["pinned"] is False
    s.wait_durable()

    # Removed, in both tiers; the others stay.
    before = entries(s)
    r = requests.delete(s.url + path, timeout=30)
    assert r.status_code == 200 and r.json()["deleted"] and r.json()["files"] >= 1
    after = entries(s)
    assert turn[0]["id"] not in {e["id"] for e in after} and len(after) == len(before) - 1
    assert s.get(path).status_code == 404
    for method in ("get", "delete"):
        assert getattr(requests, method)(s.url + path, timeout=30).status_code == 404
    assert s.post(path + "/pin", None).status_code == 404

    # Everything.
    assert requests.delete(s.url + "/admin/cache", timeout=30).json()["deleted"]
    assert entries(s) == []
    assert not list((s.home / ".mtplx/session_cache").rglob("*.page"))
    fresh = usage(s, chat)
    assert fresh["cache_mode"] == "cold"
    s.wait_for("the pages to be stored again", lambda i: i["ssd"]["queued_jobs"] == 0)
    assert usage(s, chat)["cache_mode"] == "warm_prefix"
    assert s.stop() == 0
    s = start(*EXACT)
    assert usage(s, chat)["cache_mode"] == "ssd"  # what was removed was stored anew


@pytest.mark.parametrize("others", [False, True])
def test_folder_before_the_first_write(start, tmp_path, others):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    if others:
        (folder / "file").write_text("somebody else's")
    at = ["--ssd-session-cache-dir", str(folder)]
    s = start(*EXACT, *at)
    assert entries(s) == []
    zero = "/admin/cache/" + "0" * 64
    assert s.get(zero).status_code == requests.delete(s.url + zero, timeout=30).status_code == 404
    assert requests.delete(s.url + "/admin/cache", timeout=30).status_code == 200
    done = run_mtplx("cache", "ls", *at)
    assert (done.returncode, "0 entries" in done.stdout) == ((1, False) if others else (0, True)), done
    assert usage(s, conversation(1))["cache_mode"] == "cold"
    s.wait_durable()
    assert {tuple(e["tiers"]) for e in entries(s) if e["kind"] == "turn"} == {("ram", "ssd")}


def test_pins_are_bounded(start):
    s = start("--ssd-session-cache", "off", "--kv-budget", "16M", "--max-context", "512")
    statuses = []
    for i in range(8):
        usage(s, conversation(90 + i))
        newest = min((e for e in entries(s) if e["kind"] == "turn"), key=lambda e: (e["age_s"], e["pinned"]))
        statuses.append(s.post("/admin/cache/" + newest["id"] + "/pin", None).status_code)
    assert statuses[0] == 200 and 409 in statuses, statuses
    assert usage(s, conversation(99))["prompt_tokens"] > 0  # there is room to work


def test_entries_hostile(start):
    s = start("--ssd-session-cache", "off")
    for path in ("/admin/cache/x", "/admin/cache/" + "g" * 64, "/admin/cache/" + "0" * 63,
                 "/admin/cache/" + "0" * 65, "/admin/cache/" + "0" * 64 + "/x",
                 "/admin/cache/..%2f..%2fetc", "/admin/cache/" + "0" * 64 + "/pin/x"):
        for method in ("GET", "DELETE", "POST"):
            r = requests.request(method, s.url + path, timeout=30)
            assert r.status_code == 404, (method, path, r.text)
    zero = "/admin/cache/" + "0" * 64
    for method, path, status in (("POST", "/admin/cache", 405), ("PUT", "/admin/cache", 405),
                                 ("GET", zero + "/pin", 405), ("POST", zero, 405),
                                 ("DELETE", zero + "/unpin", 405), ("DELETE", zero, 404),
                                 ("DELETE", "/admin/cache", 200), ("GET", "/admin/cache", 200)):
        assert requests.request(method, s.url + path, timeout=30).status_code == status, (method, path)
    # A name that was left out, as by a script's empty variable, must not remove everything.
    usage(s, conversation(1))
    n = len(entries(s))
    for path in ("/admin/cache/", "/admin/cache//", "/admin/cache/%2F", "/admin/cache/?x=1"):
        r = requests.delete(s.url + path, timeout=30)
        assert r.status_code == 404 and "no entry is named" in r.text, (path, r.text)
    assert len(entries(s)) == n > 0
    evil = requests.delete(s.url + "/admin/cache", headers={"Origin": "https://evil.example"}, timeout=30)
    assert evil.status_code == 403


def test_what_was_sampled_is_kept_until_something_is_deleted(start):
    s = start("--ssd-restore", "always")
    usage(s, conversation(111))
    assert s.info()["sampled_ids"]["texts"] == 1
    zero = requests.delete(s.url + "/admin/cache/" + "0" * 64, timeout=30)
    assert zero.status_code == 404 and s.info()["sampled_ids"]["texts"] == 1
    turn = next(e["id"] for e in entries(s) if e["kind"] == "turn")
    assert requests.delete(s.url + "/admin/cache/" + turn, timeout=30).status_code == 200
    assert s.info()["sampled_ids"]["texts"] == 0


def test_delete_leaves_workers_to_the_clients(start):
    """Somebody else holds the folder's lock for a long time: deletions say so and may be repeated, and
    however many there are, chat goes on."""
    s = start(*EXACT)
    usage(s, conversation(110))
    s.wait_durable()
    v1 = s.home / ".mtplx/session_cache/v1"
    answers = []
    with open(v1 / "gc.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threads = [threading.Thread(target=lambda: answers.append(
            requests.delete(s.url + "/admin/cache", timeout=30))) for _ in range(6)]
        for t in threads:
            t.start()
        assert s.chat("Hello", max_tokens=2, cache="off").text
        for t in threads:
            t.join(30)
    assert len(answers) == len(threads)
    for r in answers:
        assert r.status_code == 503 and r.json()["error"]["code"] == "busy", r.text
        assert int(r.headers["Retry-After"]) > 0
        assert "gc.lock" in r.text, r.text
    assert list(v1.rglob("*.page"))
    done = requests.delete(s.url + "/admin/cache", timeout=30)
    assert done.status_code == 200 and done.json()["files"] > 0, done.text
    assert not list(v1.rglob("*.page"))


def test_entries_of_keys_are_the_administrators(start_keyed):
    s = start_keyed(env={"MTPLX_ADMIN_KEY": "root"})
    usage(s, conversation(100), "key-one")
    usage(s, conversation(100), "key-two")
    s.wait_durable(key("root"))  # each file that is written meanwhile is one more
    listed = entries(s, key("root"))
    assert len({e["id"] for e in listed if e["kind"] == "turn"}) == 2
    assert all(e["isolated"] for e in listed)
    for name in ("key-one", "key-two"):
        for method, path in (("GET", "/admin/cache"), ("DELETE", "/admin/cache"),
                             ("DELETE", "/admin/cache/" + listed[0]["id"])):
            assert requests.request(method, s.url + path, headers=key(name), timeout=30).status_code == 403
    assert len(entries(s, key("root"))) == len(listed)


# ---- the command line ----------------------------------------------------------------------------

def test_delete_says_what_it_could_not_remove(start):
    """A folder that is read-only now: what was in RAM is gone, and the answer says that the rest is not."""
    s = start(*EXACT, before=OBEY_MODES)
    usage(s, conversation(95))
    s.wait_durable()
    folder = s.home / ".mtplx/session_cache"
    stored = {p for p in folder.rglob("*") if p.suffix in (".page", ".session")}
    folders = [p for p in folder.rglob("*") if p.is_dir()]
    path = "/admin/cache/" + next(e["id"] for e in entries(s) if e["kind"] == "turn")
    sessions = next(p for p in folders if p.name == "sessions")
    sessions.chmod(0o500)  # the pages can go
    r = requests.delete(s.url + path, timeout=30)
    said = r.json()
    assert r.status_code == 409 and said["error"]["code"] == "denied", said
    assert said["removed"]["ram"] is True and said["removed"]["files_left"] == 1, said
    assert "removed from RAM" in said["error"]["message"] and "1 files are left" in said["error"]["message"]
    assert s.get(path).json()["tiers"] == ["ssd"]
    for p in folders:
        p.chmod(0o500)
    left = {p for p in stored if p.exists()}
    for what in (path, "/admin/cache"):
        r = requests.delete(s.url + what, timeout=30)
        said = r.json()
        assert r.status_code == 409 and said["removed"]["files"] == 0 < said["removed"]["files_left"], said
        assert said["removed"]["ram"] is (what == "/admin/cache")
        assert "nothing from the folder" in said["error"]["message"]
        assert {p for p in stored if p.exists()} == left
    assert all("ram" not in e["tiers"] for e in entries(s))
    r = s.post(path + "/pin", {})  # nor can a pin be written there
    assert r.status_code == 409 and r.json()["error"]["code"] == "denied", r.text
    for p in folders:
        p.chmod(0o700)
    said = requests.delete(s.url + "/admin/cache", timeout=30).json()
    assert said["deleted"] and said["files_left"] == 0, said
    assert not any(p.exists() for p in stored)


def cache(s, *args, code=0, **kw):
    done = run_mtplx("cache", *args, home=s.home, **kw)
    assert done.returncode == code, (args, done)
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_cache_ls_show_verify_rm_gc(start):
    s = start(*EXACT)
    nothing = cache(s, "ls")
    assert nothing.splitlines()[-1].startswith("0 entries")
    chats = [conversation(110), conversation(111)]
    for chat in chats:
        usage(s, chat)
    s.wait_durable()
    assert ", 0 damaged" in cache(s, "verify")  # beside a running server, too
    assert s.stop() == 0
    lines = cache(s, "ls").splitlines()
    turns = [line.split() for line in lines if " turn " in line]
    assert len(turns) == 2 and lines[0].split()[:3] == ["id", "kind", "tokens"]
    name = turns[0][0]
    assert len(name) == 16
    shown = cache(s, "show", name)
    assert f"id       {name}" in shown and f"tokens   {turns[0][2]}" in shown
    assert "without an API key" in shown and "missing" not in shown
    assert "no entry" in cache(s, "show", "0" * 16, code=1)
    assert "not the name" in cache(s, "show", "../../x", code=2)
    assert ", 0 damaged" in cache(s, "verify") and ", 0 damaged" in cache(s, "verify", name)

    folder = s.home / ".mtplx/session_cache"
    pages = sorted(folder.rglob("*.page"), key=lambda p: p.stat().st_mtime_ns)
    data = bytearray(pages[0].read_bytes())
    data[-1] ^= 1
    pages[0].write_bytes(data)
    manifest = next(folder.rglob("*.session"))
    sound = manifest.read_bytes()
    manifest.write_bytes(sound[:-1])
    bad = cache(s, "verify", code=1)
    assert pages[0].name in bad and "payload checksum" in bad and manifest.name in bad, bad
    assert ", 2 damaged" in bad and pages[0].exists()
    moved = cache(s, "verify", "--quarantine")
    assert ", 2 damaged, 2 moved to quarantine" in moved and not pages[0].exists()
    assert len(list(folder.rglob("quarantine/*.reason"))) == 2
    assert ", 0 damaged" in cache(s, "verify")

    # rm takes what nobody else names: the other conversation stays whole.
    left = [line.split()[0] for line in cache(s, "ls").splitlines() if " turn " in line]
    target = left[0]
    assert "removed" in cache(s, "rm", target)
    assert target not in cache(s, "ls")
    assert "no entry" in cache(s, "rm", target, code=1)
    for line in cache(s, "ls").splitlines():
        if " turn " in line and "missing" not in line:
            assert ", 0 damaged" in cache(s, "verify", line.split()[0])
    before = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    cache(s, "gc", "--ssd-session-cache-max-size", "100G")
    cache(s, "gc", "--ssd-session-cache-max-size", str(before // 2))
    after = sum(p.stat().st_size for p in folder.rglob("*.page")) + sum(
        p.stat().st_size for p in folder.rglob("*.session"))
    assert after <= before // 2
    assert not list(folder.rglob("quarantine/*"))
    assert "removed 0 files" in cache(s, "gc", "--ssd-session-cache-ttl", "1h")
    for p in folder.rglob("*.page"):
        os.utime(p, times=(0, p.stat().st_mtime - 7200))
    assert "removed 0 files" not in cache(s, "gc", env={"MTPLX_SSD_SESSION_CACHE_TTL": "1h"})
    assert not list(folder.rglob("*.page"))
    s = start(*EXACT)
    for chat in chats:
        usage(s, chat)  # whatever is missing is computed
    assert s.info()["ssd"]["quarantined"] == 0


def test_cache_cli_usage(start, tmp_path):
    for args, word in (((), "actions"), (("x",), "actions"), (("rm",), "--all"), (("rm", "abc", "--all"), "--all"),
                       (("show",), "name"), (("ls", "x"), "options only"), (("explain",), "file"),
                       (("ls", "--nothing"), "--nothing"), (("gc", "--ssd-session-cache-max-size", "x"), "size"),
                       (("gc", "--ssd-session-cache-max-size", "10"), "give the unit"),
                       (("gc", "--ssd-session-cache-ttl", "30"), "unit"),
                       (("gc", "--ssd-session-cache-ttl", "x"), "time")):
        done = run_mtplx("cache", *args, home=tmp_path)
        assert done.returncode == 2 and word in done.stderr, (args, done)
    for value in ("10", "much"):
        done = run_mtplx("cache", "gc", home=tmp_path, env={"MTPLX_SSD_SESSION_CACHE_MAX_SIZE": value})
        assert done.returncode == 2 and "MTPLX_SSD_SESSION_CACHE_MAX_SIZE" in done.stderr, done
    empty = run_mtplx("cache", "ls", home=tmp_path)
    assert empty.returncode == 0 and "0 entries" in empty.stdout and "not there yet" in empty.stdout
    for args in (("ls",), ("verify",), ("gc",), ("rm", "--all")):
        done = run_mtplx("cache", *args, "--ssd-session-cache-dir", str(tmp_path / "slip"), home=tmp_path)
        assert done.returncode == 1 and "there is no folder" in done.stderr, done
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    (foreign / "file").write_text("mine")
    for args in (("ls",), ("verify",), ("gc",), ("rm", "--all")):
        done = run_mtplx("cache", *args, "--ssd-session-cache-dir", str(foreign), home=tmp_path)
        assert done.returncode == 1 and "session cache" in done.stderr, done
    assert (foreign / "file").read_text() == "mine"
    assert "explain FILE.json" in run_mtplx("help", "cache").stdout


def test_cache_explain(start, tmp_path):
    s = start(env={"MTPLX_API_KEY": "key-one", "MTPLX_ADMIN_KEY": "root"})
    chat = conversation(120)
    usage(s, chat, "key-one")
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"model": "mtplx", "messages": chat}))
    env = {"MTPLX_ADMIN_KEY": "root", "MTPLX_API_KEY": "key-one"}
    said = cache(s, "explain", str(file), "--url", s.url, env=env)
    assert "from RAM" in said and "everything is there" in said, said
    other = [dict(m) for m in chat]
    other[0]["content"] = other[0]["content"][:200] + " \u001b[31mred"
    file.write_text(json.dumps({"messages": other}))
    said = cache(s, "explain", str(file), "--url", s.url + "/", env=env)
    assert "diverged_at, token" in said and "stored" in said and "asked" in said
    assert "\u001b" not in said  # no control character reaches the terminal
    assert "x-api-key" in cache(s, "explain", str(file), "--url", s.url, code=1,
                                env={"MTPLX_ADMIN_KEY": "root"})
    assert "says 401" in cache(s, "explain", str(file), "--url", s.url, code=1)
    file.write_text("{")
    assert "says 400" in cache(s, "explain", str(file), "--url", s.url, code=1, env=env)
    assert "cannot open" in cache(s, "explain", str(tmp_path / "none"), "--url", s.url, code=1)
    for url in ("https://x", "http://", "http://a/b", "x"):
        assert "--url" in cache(s, "explain", str(file), "--url", url, code=2)
    assert s.stop() == 0
    assert "is it running" in cache(s, "explain", str(file), "--url", s.url, code=1)


@pytest.mark.parametrize("status,body", [(200, b"<html>"), (501, b"<html>"), (404, b'{"detail":"Not Found"}'),
                                         (200, b"{}"), (200, b"[]"), (200, b"null"), (500, b'{"error":"no"}')])
def test_cache_explain_by_something_else(tmp_path, status, body):
    """Another server has the port: that is said, and not what is wrong with its JSON."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    file = tmp_path / "request.json"
    file.write_text("{}")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}"
        done = run_mtplx("cache", "explain", str(file), "--url", url, home=tmp_path)
        thread.join()
    assert done.returncode == 1 and done.stdout == ""
    assert f"answers at {url} (with status {status}) is not mtplx" in done.stderr, done.stderr
