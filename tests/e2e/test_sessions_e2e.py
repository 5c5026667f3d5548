# SPDX-License-Identifier: MIT
"""Sessions as objects: named by a client's hint, forked, pinned, given a time to live, removed; and what
of that survives a restart and a full folder."""

import os
import time
from urllib.parse import quote

import requests

from conftest import EXACT, run_mtplx, text_of

SESSIONS = "/admin/cache/sessions"


def opening(seed):
    return [{"role": "system", "content": "You are a helpful storyteller. " + text_of(seed, 150)},
            {"role": "user", "content": "Tell me about the first thing in your notes."}]


def say(s, chat, text, **kw):
    """One turn; the conversation with it."""
    a = s.chat(chat, max_tokens=8, **kw)
    return a, chat + [{"role": "assistant", "content": a.text}, {"role": "user", "content": text}]


def sessions(s, **kw):
    r = s.get(SESSIONS, **kw)
    assert r.status_code == 200, r.text
    return {x["name"]: x for x in r.json()["data"]}


def post(s, path, body=None, status=200, **kw):
    r = requests.post(s.url + SESSIONS + path, json=body, timeout=30, **kw)
    assert r.status_code == status, (path, r.status_code, r.text)
    return r.json()


def delete(s, path, **kw):
    r = requests.delete(s.url + path, timeout=30, **kw)
    assert r.status_code == 200, r.text
    return r.json()


def files(s, suffix):
    return sorted((s.home / ".mtplx/session_cache").rglob("*" + suffix))


def age(s, seconds):
    """Everything in the folder was used that long ago."""
    for p in (s.home / ".mtplx/session_cache/v1").rglob("*"):
        if p.is_file() and p.name != "gc.lock":
            t = time.time() - seconds
            os.utime(p, (t, t))


def swept(start, *args):
    """A server, when it has swept its folder for the first time. What it counts in /info, it counts before
    it deletes."""
    s = start(*EXACT, "--log-level", "debug", *args)
    s.wait_for("the sweep", lambda i: "cold: sweep: files=" in s.log)
    return s


def test_a_fork_shares_and_goes_its_own_way(start):
    s = start(*EXACT)
    a, chat = say(s, opening(1), "Go on.", prompt_cache_key="talk")
    s.wait_durable()
    made = post(s, "/talk/fork", {"name": "the other", "ttl_s": 3600, "pinned": True}, 201)
    talk = sessions(s)["talk"]
    assert made["forked_from"] == talk["id"] and made["entry"] == talk["entry"] and made["tokens"] > a.prompt
    assert (made["ttl_s"], made["pinned"]) == (3600, True) and (talk["ttl_s"], talk["pinned"]) == (0, False)
    n_pages = len(files(s, ".page"))
    post(s, "/talk/fork", {"name": "the other"}, 409)
    assert len(files(s, ".page")) == n_pages  # nothing is copied

    # Both go on from what they share, each with its own words.
    one, _ = say(s, chat, "", prompt_cache_key="talk")
    chat[-1] = {"role": "user", "content": "Something else, please."}
    two, _ = say(s, chat, "", headers={"X-Session-Id": "the other"})
    assert one.mode == two.mode == "warm_prefix" and two.cached >= a.prompt
    assert s.wait_for("both to move", lambda i: len({x["entry"] for x in sessions(s).values()} | {made["entry"]}) == 3)
    now = sessions(s)
    assert now["the other"]["pinned"] and now["the other"]["ttl_s"] == 3600
    assert now["the other"]["forked_from"] == talk["id"] and not now["talk"]["pinned"]

    # The one goes, the other stays whole, also for the next server.
    gone = delete(s, SESSIONS + "/talk")
    assert gone["deleted"] and gone["files"] > 0 and list(sessions(s)) == ["the other"]
    assert s.stop() == 0
    assert run_mtplx("cache", "verify", home=s.home).returncode == 0
    s = start(*EXACT)
    again = s.chat(chat, max_tokens=8)
    assert again.mode == "ssd" and again.cached >= two.prompt - 1 and again.text == two.text, again.usage


def test_a_fork_that_has_not_gone_on_keeps_its_entry(start):
    s = start(*EXACT)
    a, chat = say(s, opening(2), "Go on.", prompt_cache_key="one")
    s.wait_durable()
    post(s, "/one/fork", {"name": "two"}, 201)
    assert delete(s, SESSIONS + "/one")["entry_kept"]
    assert s.stop() == 0
    s = start(*EXACT)
    assert s.chat(chat).cached >= a.prompt
    # What a fork stands at stays where it is though the other has gone on and superseded it.
    post(s, "/two/fork", {"name": "three"}, 201)
    say(s, chat, "", prompt_cache_key="three")
    s.wait_for("the new turn", lambda i: len({x["entry"] for x in sessions(s).values()}) == 2)
    head = sessions(s)["two"]["entry"]
    age(s, 7200)
    assert s.stop() == 0
    s = swept(start)
    assert any(p.stem == head for p in files(s, ".session"))
    delete(s, SESSIONS + "/three")
    assert s.stop() == 0
    s = start(*EXACT)
    assert s.chat(chat).cached >= a.prompt


def test_pins_survive_restart_full_folder_and_gc(start):
    s = start(*EXACT)
    a, chat = say(s, opening(3), "Go on.", prompt_cache_key="kept")
    b, other = say(s, opening(4), "Go on.")
    _, plain = say(s, opening(5), "Go on.")
    s.wait_durable()
    post(s, "/kept/pin")
    turn = next(e for e in s.get("/admin/cache").json()["data"]
                if e["kind"] == "turn" and e["tokens"] >= b.prompt and not e["pinned"])
    r = requests.post(s.url + f"/admin/cache/{turn['id']}/pin", timeout=30).json()
    assert r["pinned"] and r["in_ram"] and r["on_disk"]
    assert s.stop() == 0
    s = start(*EXACT)
    pinned = {e["id"] for e in s.get("/admin/cache").json()["data"] if e["pinned"]}
    assert pinned == {sessions(s)["kept"]["entry"], turn["id"]} and sessions(s)["kept"]["pinned"]
    # In RAM, too, with the session's next turn, and only its newest point.
    _, chat = say(s, chat, "And then?", prompt_cache_key="kept")
    in_ram = [e for e in s.get("/admin/cache").json()["data"] if e["pinned"] and "ram" in e["tiers"]]
    assert len(in_ram) == 1 and in_ram[0]["tokens"] > a.prompt + 8
    s.wait_for("the session to move", lambda i: sessions(s)["kept"]["entry"] == in_ram[0]["id"])
    assert s.stop() == 0

    age(s, 40 * 86400)
    n = len(files(s, ".page"))
    done = run_mtplx("cache", "gc", "--ssd-session-cache-max-size", "1M", "--ssd-session-cache-ttl", "1d", home=s.home)
    assert done.returncode == 0 and 0 < len(files(s, ".page")) < n, done
    assert {p.stem for p in files(s, ".session")} == {in_ram[0]["id"], turn["id"]}
    age(s, 40 * 86400)
    s = swept(start, "--ssd-session-cache-max-size", "1M", "--ssd-session-cache-ttl", "1d")
    assert s.chat(chat[:-1]).cached > a.prompt
    assert s.get("/admin/cache").json()["data"]
    assert requests.delete(s.url + f"/admin/cache/{turn['id']}/pin", timeout=30).json()["pinned"] is False
    post(s, "/kept/unpin")
    assert s.stop() == 0
    age(s, 40 * 86400)
    run_mtplx("cache", "gc", "--ssd-session-cache-ttl", "1d", home=s.home)
    run_mtplx("cache", "gc", home=s.home)  # bookmarks of what is gone
    assert not files(s, ".page") and not files(s, ".session") and not files(s, ".bookmark")


def test_a_sessions_own_time_to_live(start):
    s = start(*EXACT)
    _, chat = say(s, opening(6), "Go on.", prompt_cache_key="short")
    say(s, opening(7), "Go on.", prompt_cache_key="long")
    s.wait_durable()
    assert post(s, "/short/ttl", {"ttl_s": 3600})["ttl_s"] == 3600
    assert s.stop() == 0
    age(s, 7200)
    s = swept(start)
    assert list(sessions(s)) == ["long"] and s.info()["ssd"]["files_expired"] > 0
    assert "a session has expired" in s.log
    assert s.chat(chat).cached < 64  # nothing of it but what all prompts begin with
    post(s, "/long/ttl", {"ttl_s": 3600})
    assert s.stop() == 0
    age(s, 7200)
    assert run_mtplx("cache", "gc", home=s.home).returncode == 0
    assert not files(s, ".bookmark")


def test_names_are_hints(start):
    s = start(*EXACT)
    for body, headers, status in (({"prompt_cache_key": 7}, {}, 400), ({"prompt_cache_key": "a\nb"}, {}, 400),
                                  ({"prompt_cache_key": "x" * 257}, {}, 400), ({}, {"X-Session-Id": "x" * 257}, 400),
                                  ({"prompt_cache_key": "a/b ü"}, {}, 200), ({"prompt_cache_key": ""}, {}, 200),
                                  ({"prompt_cache_key": "unseen", "cache": "no-store"}, {}, 200)):
        r = s.post("/v1/chat/completions", {"messages": opening(8), "max_tokens": 2, **body}, headers=headers)
        assert r.status_code == status, (body, r.text)
        assert status == 200 or "prompt_cache_key" in r.text or "X-Session-Id" in r.text
    # Another name finds the same prefix: the tokens decide.
    assert s.chat(opening(8), prompt_cache_key="elsewhere").mode == "warm_prefix"
    s.wait_durable()
    s.wait_for("the names", lambda i: set(sessions(s)) == {"a/b ü", "elsewhere"})
    assert s.get(SESSIONS + "/" + sessions(s)["a/b ü"]["id"]).json()["name"] == "a/b ü"
    assert s.get(SESSIONS + "/a%2Fb%20%C3%BC").json()["name"] == "a/b ü"
    for method, path, body, status in (("GET", "/none", None, 404), ("DELETE", "/none", None, 404),
                                       ("POST", "/none/fork", {"name": "x"}, 404), ("POST", "", None, 405),
                                       ("POST", "/elsewhere", None, 405), ("PUT", "/elsewhere", None, 405),
                                       ("POST", "/elsewhere/fork", {}, 400), ("POST", "/elsewhere/ttl", {}, 400),
                                       ("POST", "/elsewhere/ttl", {"ttl_s": -1}, 400), ("DELETE", "/", None, 405),
                                       ("GET", "/" + "x" * 400, None, 404)):
        r = requests.request(method, s.url + SESSIONS + path, json=body, timeout=30)
        assert r.status_code == status, (method, path, r.text)
    assert set(sessions(s)) == {"a/b ü", "elsewhere"}
    assert s.stop() == 0
    s = start("--ssd-session-cache", "off")
    s.chat(opening(8), prompt_cache_key="ram")
    assert sessions(s) == {} and requests.delete(s.url + SESSIONS + "/ram", timeout=30).status_code == 409


def test_names_are_each_keys_own(start):
    s = start(*EXACT, env={"MTPLX_API_KEY": "key-one,key-two", "MTPLX_ADMIN_KEY": "root"})
    for k in ("key-one", "key-two"):
        s.chat(opening(9), headers={"Authorization": "Bearer " + k}, prompt_cache_key="mine")
    root = {"Authorization": "Bearer root"}
    s.wait_for("both", lambda i: len(s.get(SESSIONS, headers=root).json()["data"]) == 2, headers=root)
    both = s.get(SESSIONS, headers=root).json()["data"]
    assert {x["name"] for x in both} == {"mine"} and all(x["isolated"] for x in both)
    assert s.get(SESSIONS + "/mine", headers=root).status_code == 404
    got = s.get(SESSIONS + "/mine", headers={**root, "x-api-key": "key-one"}).json()
    assert got["id"] in {x["id"] for x in both}
    assert s.get(SESSIONS, headers={"Authorization": "Bearer key-one"}).status_code == 403


def test_the_command_line(start):
    s = start(*EXACT)
    say(s, opening(10), "Go on.", prompt_cache_key="talk")
    say(s, opening(11), "Go on.", prompt_cache_key="rest")
    s.wait_durable()
    s.wait_for("the names", lambda i: len(sessions(s)) == 2)
    entry = sessions(s)["rest"]["entry"]

    def cache(*args, code=0):
        done = run_mtplx("cache", *args, home=s.home)
        assert done.returncode == code, (args, done)
        return done.stdout + done.stderr

    # Names in any script; what a terminal would obey is not sent to it.
    assert "which both share" in cache("fork", "talk", "разговор 会話\u202e\u009b2J")
    assert any(r.endswith("  разговор 会話??2J") for r in cache("sessions").splitlines())
    assert requests.delete(s.url + SESSIONS + "/" + quote("разговор 会話\u202e\u009b2J"), timeout=30).ok
    # Beside a running server, which lists it at once.
    assert "which both share" in cache("fork", "talk", "a second one")
    assert "already" in cache("fork", "talk", "rest", code=1)
    assert "12h" in cache("ttl", "a second one", "12h")
    assert "neither" in cache("pin", "talk") and "neither" in cache("pin", entry[:10])
    now = sessions(s)
    assert now["a second one"]["ttl_s"] == 12 * 3600 and now["talk"]["pinned"] and not now["rest"]["pinned"]
    assert {e["id"] for e in s.get("/admin/cache").json()["data"] if e["pinned"]} == {now["talk"]["entry"], entry}
    rows = cache("sessions").splitlines()
    assert rows[-1].startswith("4 sessions and pins") and sum("(a pinned entry)" in r for r in rows) == 1
    assert ", 0 damaged" in cache("verify")
    assert s.stop() == 0
    assert "any more" in cache("unpin", entry[:10]) and "not pinned" in cache("unpin", entry[:10], code=1)
    assert "any more" in cache("unpin", now["talk"]["id"][:12])
    assert not any(" yes " in r for r in cache("sessions").splitlines())

    # A bookmark that is damaged is named, and goes where damaged files go; nothing else does.
    mark = next(p for p in files(s, ".bookmark") if p.stem == now["rest"]["id"])
    data = bytearray(mark.read_bytes())
    data[300] ^= 1
    mark.write_bytes(data)
    assert mark.name in cache("verify", code=1)
    assert "3 sessions" not in cache("sessions") and "2 sessions" in cache("sessions")
    assert "1 moved to quarantine" in cache("verify", "--quarantine") and ", 0 damaged" in cache("verify")
    # rm of an entry takes the sessions that stand there with it.
    cache("rm", now["talk"]["entry"][:16])
    assert cache("sessions").splitlines()[-1].startswith("0 sessions")
    cache("rm", "--all")
    assert not (s.home / ".mtplx/session_cache").exists() or not files(s, "")
