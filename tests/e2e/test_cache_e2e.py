# SPDX-License-Identifier: MIT
"""The promise of the two tiers, seen from outside: where a prompt came from, and that the answer is
the same wherever it came from."""

import fcntl
import json
import os
import random
import re
import subprocess
import threading
import time

import pytest
import requests

from conftest import BIN, EXACT, MODEL, OBEY_MODES, call_text, run_mtplx, text_of, weather_chat


def conversation(seed, n_words=110):
    return [{"role": "system", "content": "You are a helpful storyteller. " + text_of(seed, n_words)},
            {"role": "user", "content": "Tell me about the first thing in your notes."}]


def test_cold_warm_restart_ssd_warm(start):
    chat = conversation(1)
    s = start(*EXACT)
    cold = s.chat(chat, max_tokens=16)
    warm = s.chat(chat, max_tokens=16)
    assert (cold.mode, cold.cached) == ("cold", 0)
    assert warm.mode == "warm_prefix" and warm.cached >= warm.prompt - 1
    turn = chat + [{"role": "assistant", "content": cold.text}, {"role": "user", "content": "Go on."}]
    second = s.chat(turn, max_tokens=16)
    assert second.mode == "warm_prefix" and second.cached > cold.prompt - 8
    assert s.stop() == 0
    assert "[mtplx] shutdown: SSD session cache flushed\n" in s.log_lines

    s = start(*EXACT)
    from_disk = s.chat(chat, max_tokens=16)
    promoted = s.chat(chat, max_tokens=16)
    second_from_disk = s.chat(turn, max_tokens=16)
    assert from_disk.mode == "ssd" and from_disk.cache["ssd_tokens"] >= cold.prompt - 64
    assert promoted.mode == "warm_prefix" and promoted.cache["ssd_tokens"] == 0
    assert second_from_disk.cached >= cold.prompt - 1
    assert cold.text == warm.text == from_disk.text == promoted.text
    assert second.text == second_from_disk.text
    uncached = s.chat(turn, max_tokens=16, cache="off")
    assert uncached.mode == "cold" and uncached.text == second.text


def test_kill_9_after_the_answer(start):
    chat = conversation(2)
    s = start(*EXACT)
    cold = s.chat(chat, max_tokens=12)
    s.wait_durable()
    s.kill()
    s = start(*EXACT)
    again = s.chat(chat, max_tokens=12)
    warm = s.chat(chat, max_tokens=12)
    assert (cold.mode, again.mode, warm.mode) == ("cold", "ssd", "warm_prefix")
    assert cold.text == again.text == warm.text


def test_defaults(start):
    chat = conversation(3)
    s = start()
    cold = s.chat(chat)
    warm = s.chat(chat)
    assert (cold.mode, warm.mode) == ("cold", "warm_prefix")
    assert s.stop() == 0
    s = start()
    again = s.chat(chat)
    assert again.mode in ("ssd", "cold"), again.usage  # auto: computing may be cheaper
    assert cold.text == warm.text == again.text
    assert (s.home / ".mtplx/session_cache").stat().st_mode & 0o777 == 0o700
    for folder, _, files in os.walk(s.home / ".mtplx/session_cache"):
        assert os.stat(folder).st_mode & 0o777 == 0o700, folder
        for f in files:
            assert os.stat(os.path.join(folder, f)).st_mode & 0o777 == 0o600, f


def test_sampled_tokens_stay(start):
    """A second turn reuses the first answer to its end, however it was tokenised when sampled."""
    chats = [conversation(30 + i, 40) for i in range(6)]
    s = start()
    sources, firsts = [], []
    for i, chat in enumerate(chats):
        first = s.chat(chat, max_tokens=24, temperature=1.2, min_p=0, seed=i)
        answer = first.usage["completion_tokens"]
        assert "\ufffd" not in first.text
        second = s.chat(chat + [{"role": "assistant", "content": first.text},
                                {"role": "user", "content": "Go on."}])
        assert second.cache["ram_tokens"] >= first.prompt + answer - 1, (first.text, second.usage)
        assert first.cache["prompt_source"] == "client"
        sources.append(second.cache["prompt_source"])
        firsts.append(first.text)
    assert set(sources) == {"client", "sampled_ids"}, sources
    assert s.info()["sampled_ids"]["texts"] == 12
    assert any("prompt_source=sampled_ids" in line for line in s.log_lines)
    assert s.stop() == 0
    s = start("--canonical-prompts", "--ssd-session-cache", "off")
    for i, chat in enumerate(chats):
        first = s.chat(chat, max_tokens=24, temperature=1.2, min_p=0, seed=i)
        assert first.text == firsts[i]  # the prompt is the same, so is the answer
        second = s.chat(chat + [{"role": "assistant", "content": first.text},
                                {"role": "user", "content": "Go on."}])
        assert second.cache["prompt_source"] == "client"
        is_whole = second.cached >= first.prompt + first.usage["completion_tokens"] - 1
        assert is_whole == (sources[i] == "client"), (first.text, second.usage)
    assert s.info()["sampled_ids"] is None


def odd_answers(s, n, **kw):
    """Conversations of one turn; with the model's own tokens some are not what their text tokenises to."""
    out = []
    for i in range(n):
        chat = conversation(70 + i, 60)
        first = s.chat(chat, max_tokens=24, temperature=1.2, min_p=0, seed=i, **kw)
        assert "\ufffd" not in first.text
        out.append((chat, first))
    return out


def second_turn(s, chat, first, **kw):
    return s.chat(chat + [{"role": "assistant", "content": first.text},
                          {"role": "user", "content": "Go on."}], **kw)


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_sampled_tokens_survive_a_restart(start, way):
    """The second turn after a restart finds the first answer, however it was tokenised."""
    s = start("--ssd-restore", "always")
    firsts = odd_answers(s, 5)
    s.wait_durable()
    if way == "stop":
        assert s.stop() == 0
    else:
        s.kill()
    s = start("--ssd-restore", "always")
    sources = []
    for chat, first in firsts:
        answer = first.usage["completion_tokens"]
        second = second_turn(s, chat, first)
        assert second.cache["ssd_tokens"] >= first.prompt + answer - 1, (first.text, second.usage)
        sources.append(second.cache["prompt_source"])
    assert "sampled_ids" in sources, sources


def kept(second, first):
    return second.cache["ssd_tokens"] >= first.prompt + first.usage["completion_tokens"] - 1


def test_restored_answers_are_their_owners_only(start):
    """Another API key neither finds nor is told of the ids that were sampled for the first."""
    keys = ["--ssd-restore", "always", "--api-key", "one", "--api-key", "two"]
    bearer = {k: {"Authorization": "Bearer " + k} for k in ("one", "two")}
    s = start(*keys)
    firsts = odd_answers(s, 3, headers=bearer["one"])
    assert s.stop() == 0
    s = start(*keys)
    sources = {"one": set(), "two": set()}
    for chat, first in firsts:
        for key in ("two", "one"):
            second = second_turn(s, chat, first, headers=bearer[key])
            sources[key].add(second.cache["prompt_source"])
            assert kept(second, first) == (key == "one"), (key, second.usage)
    assert sources["two"] == {"client"} and "sampled_ids" in sources["one"], sources


def test_damaged_sessions_are_tokenised(start):
    """Whatever a folder holds after a restart: the answer is the canonical one, and the server lives."""
    s = start("--ssd-restore", "always")
    firsts = odd_answers(s, 4)
    s.wait_for("the folder", lambda i: i["ssd"]["queued_jobs"] == 0 and i["ssd"]["turns"] >= 4)
    s.kill()
    want = []
    s = start("--ssd-session-cache", "off", "--canonical-prompts")
    for chat, first in firsts:
        want.append(second_turn(s, chat, first).text)
    s.stop()
    rng = random.Random(1)
    for path in (s.home / ".mtplx/session_cache").rglob("*.session"):
        data = bytearray(path.read_bytes())
        data[rng.randrange(256, len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    s = start("--ssd-restore", "always")
    for (chat, first), text in zip(firsts, want):
        second = second_turn(s, chat, first)
        assert second.cache["prompt_source"] == "client"
        assert second.text == text
    assert s.info()["ssd"]["quarantined"] >= 4
    assert s.stop() == 0


def test_deleted_conversations_are_forgotten(start):
    s = start("--ssd-restore", "always")
    firsts = odd_answers(s, 4)
    s.wait_durable()
    assert requests.delete(s.url + "/admin/cache", timeout=30).status_code == 200
    sources = [second_turn(s, chat, first).cache["prompt_source"] for chat, first in firsts]
    assert set(sources) == {"client"}
    assert s.stop() == 0


def test_stopped_answer_goes_on(start):
    """What was streamed before the client hung up is reused to its end by the next turn."""
    s = start("--ssd-session-cache", "off")
    sources = []
    for i in range(6):
        chat = conversation(50 + i, 40)
        text, n = "", 0
        body = {"messages": chat, "max_tokens": 400, "temperature": 1.2, "min_p": 0, "seed": i,
                "stream": True, "ignore_eos": True}
        with requests.post(s.url + "/v1/chat/completions", json=body, stream=True, timeout=60) as r:
            for line in r.iter_lines():
                if line.startswith(b"data: {") and n < 24:
                    delta = json.loads(line[6:])["choices"][0]["delta"].get("content")
                    n += bool(delta)
                    text += delta or ""
                if n == 24:
                    break
        s.wait_for("the end of the answer", lambda info: info["engine"]["n_running"] == 0)
        assert any("finish=hung_up" in line for line in s.log_lines)
        second = s.chat(chat + [{"role": "assistant", "content": text},
                                {"role": "user", "content": "Go on."}])
        stem = s.chat(chat, max_tokens=1).prompt
        assert second.cache["ram_tokens"] >= stem + n - 1, (text, second.usage)
        sources.append(second.cache["prompt_source"])
    assert "sampled_ids" in sources, sources


def test_off_touches_no_file(start):
    chat = conversation(4)
    s = start("--ssd-session-cache", "off")
    s.chat(chat)
    assert s.chat(chat).mode == "warm_prefix"
    assert s.info()["ssd"] == {"mode": "off"}
    assert s.stop() == 0
    assert list(s.home.iterdir()) == []
    s = start("--ssd-session-cache", "off")
    assert s.chat(chat).mode == "cold"


def test_write_only_does_not_read(start):
    chat = conversation(5)
    s = start("--ssd-session-cache", "write-only", *EXACT)
    s.chat(chat)
    assert s.stop() == 0
    s = start("--ssd-session-cache", "write-only", *EXACT)
    assert s.chat(chat).mode == "cold"
    assert s.stop() == 0
    s = start(*EXACT)
    assert s.chat(chat).mode == "ssd"


def test_edited_middle_message_reuses_the_stem(start):
    s = start(*EXACT)
    def chat(middle):
        return conversation(6)[:1] + [{"role": "user", "content": "My name is " + middle},
                                      {"role": "assistant", "content": "Nice to meet you."},
                                      {"role": "user", "content": "What is my name?"}]
    first = s.chat(chat("Robert, and I live in a small town by the sea."))
    edited = s.chat(chat("Alice, and I live in a big city in the hills."))
    assert first.mode == "cold"
    assert edited.mode == "warm_prefix" and 100 < edited.cached < edited.prompt - 20, edited.usage
    assert edited.cache["miss"]["token_index"] == edited.cached
    assert edited.text == s.chat(chat("Alice, and I live in a big city in the hills."),
                                 cache="off").text


def test_cancelled_stream_is_reused(start):
    s = start(*EXACT)
    body = {"messages": conversation(7), "temperature": 0, "max_tokens": 400, "stream": True,
            "ignore_eos": True}
    with requests.post(s.url + "/v1/chat/completions", json=body, stream=True, timeout=60) as r:
        for line in r.iter_lines():
            if b'"content":"' in line and b'"role"' not in line:
                break
    s.wait_for("the cancelled request's end", lambda i: i["engine"]["n_running"] == 0)
    again = s.chat(body["messages"], max_tokens=12)
    assert again.mode == "warm_prefix" and again.cached >= again.prompt - 1
    assert again.text == s.chat(body["messages"], max_tokens=12, cache="off").text


def test_prefill_cut_short_is_resumed(start):
    s = start("--prefill-chunk", "64", *EXACT)
    messages = conversation(8, 420)
    sock = s.open_socket({"messages": messages, "max_tokens": 1, "temperature": 0})
    s.wait_for("two pages", lambda i: i["bank"]["pages"] >= 2)
    sock.close()
    s.wait_for("the cancelled request's end", lambda i: i["engine"]["n_running"] == 0)
    n_pages = s.info()["bank"]["pages"]
    again = s.chat(messages, max_tokens=6)
    assert again.mode == "warm_prefix" and again.cached >= 64 * n_pages - 64, again.usage
    assert again.text == s.chat(messages, max_tokens=6, cache="off").text


def test_two_interleaved_conversations(start):
    s = start(*EXACT)
    chats = [conversation(9, 70), conversation(10, 70)]
    for turn in range(2):
        for chat in chats:
            answer = s.chat(chat)
            assert answer.text == s.chat(chat, cache="off").text
            assert answer.mode == ("cold" if turn == 0 and chat is chats[0] else "warm_prefix")
            if turn > 0:
                assert answer.cached > 100, answer.usage
            chat += [{"role": "assistant", "content": answer.text},
                     {"role": "user", "content": f"And then, step {turn}?"}]


def test_ten_parallel_streams(start):
    s = start(*EXACT)
    prompts = [f"Write one line about {text_of(20 + i, 6)}" for i in range(10)]
    alone = [s.chat(p, cache="off", max_tokens=8).text for p in prompts]
    together = [None] * 10

    def run(i):
        events = s.stream(prompts[i], max_tokens=8)
        assert events[-1] == "[DONE]"
        together[i] = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


def test_cache_off_and_no_store(start):
    s = start(*EXACT)
    chat = conversation(11, 50)
    assert s.chat(chat, cache="no-store").mode == "cold"
    assert s.chat(chat, cache="no-store").mode == "cold"  # the first one left nothing
    assert s.chat(chat).mode == "cold"
    assert s.chat(chat, cache="no-store").mode == "warm_prefix"
    off = s.chat(chat, cache="off")
    assert (off.mode, off.cached) == ("cold", 0)
    s.wait_durable()
    files = s.info()["ssd"]["files"]
    s.chat(conversation(12, 50), cache="no-store")
    s.chat(conversation(12, 50), cache="off")
    assert s.info()["ssd"]["files"] == files and s.info()["ssd"]["queued_jobs"] == 0


def cache_files(home):
    root = home / ".mtplx/session_cache"
    return sorted(p for p in root.rglob("*") if p.suffix in (".page", ".session", ".state"))


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_files(start, tmp_path, damage):
    chats = [conversation(100 + i, 62)[0:1] + [{"role": "user", "content": "Why?"}] for i in range(12)]
    s = start(*EXACT)
    texts = [s.chat(c, max_tokens=4).text for c in chats]
    assert s.stop() == 0
    files = cache_files(s.home)
    rng = random.Random(7)
    assert len(files) >= 20, files
    damaged = rng.sample(files, 20)
    for path in damaged:
        data = bytearray(path.read_bytes())
        if damage == "truncated":
            del data[rng.randrange(len(data)):]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    s = start(*EXACT)
    for chat, text in zip(chats, texts):
        assert s.chat(chat, max_tokens=4).text == text, damage
    assert s.get("/health").status_code == 200
    quarantined = [p for p in (s.home / ".mtplx/session_cache").rglob("*") if "quarantine" in p.parts
                   and p.is_file()]
    assert quarantined, "nothing was quarantined"
    assert s.info()["ssd"]["quarantined"] > 0
    assert s.stop() == 0


def said(s):
    """What a start tells people about where conversations are kept."""
    until = time.monotonic() + 10
    while not any("Ctrl-C" in line for line in s.out_lines):
        assert time.monotonic() < until
        time.sleep(0.01)
    return next(line for line in s.out_lines if line.startswith("Conversations are kept"))


def test_start_says_where_conversations_are_kept(start, tmp_path):
    s = start()
    folder = s.home / ".mtplx/session_cache"
    assert f"kept in {folder} (" in said(s) and s.stop() == 0
    s = start("--ssd-session-cache", "off")
    assert "kept in RAM only, until" in said(s) and s.stop() == 0
    folder.chmod(0o500)  # was used before, and cannot be written now
    s = start(before=OBEY_MODES)
    assert "kept in RAM only: cannot" in said(s) and "Permission denied" in said(s)
    assert s.info()["ssd"]["is_degraded"]
    assert s.stop() == 0
    folder.chmod(0o777)
    s = start()
    assert "kept in RAM only" in said(s) and "others can write" in said(s), said(s)


def test_unusable_folder_serves_from_ram(start, tmp_path):
    blocked = tmp_path / "blocked"
    if os.getuid() == 0:
        blocked = "/sys/mtplx-cache"  # root may write everywhere else
    else:
        blocked.mkdir()
        blocked.chmod(0o500)
    s = start("--ssd-session-cache-dir", str(blocked), *EXACT)
    assert re.search(r"kept in RAM only: cannot .*mtplx-cache|kept in RAM only: cannot .*blocked", said(s))
    chat = conversation(13, 50)
    cold, warm = s.chat(chat), s.chat(chat)
    assert (cold.mode, warm.mode) == ("cold", "warm_prefix") and cold.text == warm.text
    ssd = s.info()["ssd"]
    assert ssd["is_degraded"] and ssd["degraded_reason"]
    assert s.stop() == 0
    assert sum("warning" in line for line in s.log_lines) == 1, s.log


def test_cache_rm(start):
    s = start(*EXACT)
    s.chat(conversation(14, 50))
    assert s.stop() == 0
    assert cache_files(s.home)
    assert run_mtplx("cache", "rm", home=s.home).returncode == 2
    done = run_mtplx("cache", "rm", "--all", home=s.home)
    assert done.returncode == 0 and done.stdout.startswith("removed "), done
    assert cache_files(s.home) == []
    s = start(*EXACT)
    assert s.chat(conversation(14, 50)).mode == "cold"


def test_keys_do_not_see_each_others_prefixes(start):
    s = start("--api-key", "key-one", "--api-key", "key-two", *EXACT)
    body = {"messages": conversation(15, 60), "temperature": 0, "max_tokens": 4}
    modes = []
    for key in ("key-one", "key-two", "key-one", "key-two"):
        r = s.post("/v1/chat/completions", body, headers={"Authorization": "Bearer " + key})
        modes.append(r.json()["usage"]["cache_mode"])
    assert modes == ["cold", "cold", "warm_prefix", "warm_prefix"]


def test_write_budget_outlives_a_restart(start):
    s = start("--ssd-write-budget", "4M", *EXACT)
    s.chat(conversation(31))
    s.chat(conversation(32))
    assert s.stop() == 0
    s = start("--ssd-write-budget", "4M", "--ssd-session-cache-ttl", "30d", *EXACT)
    s.chat(conversation(33))
    s.chat(conversation(34))
    ssd = s.info()["ssd"]
    assert 0 < ssd["bytes_today"] <= 4 << 20 and ssd["files_expired"] == 0
    assert ssd["dropped_budget"] > 0 and not ssd["is_degraded"]
    assert ssd["write_failures"] == 0
    assert sum("--ssd-write-budget" in line for line in s.log_lines) == 1
    assert not any("queue is full" in line for line in s.log_lines)
    assert s.stop() == 0
    s = start(*EXACT)
    assert s.chat(conversation(31)).cached > 64


def test_compression_is_found_both_ways(start):
    sizes, answers, stored = {}, [], 0
    for seed, first, second in ((36, "zstd", "off"), (37, "off", "lz4"), (38, "lz4", "zstd")):
        chat = conversation(seed)
        s = start("--ssd-session-cache-compress", first, *EXACT)
        cold = s.chat(chat, max_tokens=8)
        assert s.stop() == 0
        sizes[first] = sum(os.path.getsize(f) for f in cache_files(s.home)) - stored
        stored += sizes[first]
        s = start("--ssd-session-cache-compress", second, *EXACT)
        ssd = s.chat(chat, max_tokens=8)
        assert cold.cached < 64 and ssd.mode == "ssd" and ssd.cached >= cold.prompt - 1
        answers.append((cold.text, ssd.text))
        assert s.info()["ssd"]["quarantined"] == 0
        assert s.stop() == 0
    assert all(a == b for a, b in answers)
    assert sizes["zstd"] < 0.95 * sizes["off"]
    assert run_mtplx("cache", "verify", home=s.home).returncode == 0


def test_commands_say_what_they_wait_for(start):
    """Somebody else is removing files, for long, or hangs while it does."""
    s = start(*EXACT)
    s.chat(conversation(45))
    s.wait_durable()
    assert s.stop() == 0
    entry = run_mtplx("cache", "ls", home=s.home).stdout.splitlines()[1].split()[0]
    commands = [["gc"], ["verify", "--quarantine"], ["rm", entry], ["rm", "--all"]]
    with open(s.home / ".mtplx/session_cache/v1/gc.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = [subprocess.Popen([str(BIN), "cache", *c], env={**os.environ, "HOME": str(s.home)},
                                    text=True, stderr=subprocess.PIPE) for c in commands]
        said = [w.stderr.readline() for w in waiting]
        assert all("waiting: another process" in line and "gc.lock" in line for line in said), said
        assert [w.poll() for w in waiting] == [None] * 4
        assert run_mtplx("cache", "verify", home=s.home).returncode == 0
    for w in waiting:
        w.wait(20)
        w.stderr.close()
    assert waiting[0].returncode == waiting[3].returncode == 0
    assert not (s.home / ".mtplx/session_cache/v1").exists()


def test_files_that_may_not_grow(start, tmp_path):
    """`ulimit -f` ends a process by a signal, unless it asks for an error: it is as a full disk, for the
    commands, too."""
    limited = ["bash", "-c", 'ulimit -f 400; exec "$0" "$@"']
    chat = conversation(44)
    s = start(*EXACT, before=limited)  # a page is larger, a partial one may not be
    cold, warm = s.chat(chat), s.chat(chat)
    assert (cold.mode, warm.mode) == ("cold", "warm_prefix") and cold.text == warm.text
    assert s.wait_for("the writer", lambda i: i["ssd"]["queued_jobs"] == 0)["ssd"]["is_degraded"]
    assert s.stop() == 0
    warnings = [line for line in s.log_lines if "off for now" in line]
    assert len(warnings) == 1 and "File too large" in warnings[0], s.log
    assert list(s.home.rglob(".tmp-*")) == []
    s = start(*EXACT)
    assert s.chat(chat).text == cold.text
    assert s.stop() == 0
    entry = run_mtplx("cache", "ls", home=s.home).stdout.splitlines()[1].split()[0]
    file = tmp_path / "talk.mtplx"
    done = run_mtplx("cache", "export", entry, str(file), "--model", str(MODEL), home=s.home,
                     before=limited)
    assert done.returncode == 1 and "File too large" in done.stderr, done
    assert not file.exists()


def test_shared_folder_needs_a_key(start, tmp_path):
    folder, chat = tmp_path / "shared", conversation(41)
    folder.mkdir()
    folder.chmod(0o777)
    keys = [tmp_path / name for name in ("key-a", "key-b")]
    for i, key in enumerate(keys):
        key.write_text("%d" % i * 40)
        key.chmod(0o600)
    place = ("--ssd-session-cache-dir", str(folder), *EXACT)
    s = start(*place)
    plain = s.chat(chat, max_tokens=8)
    assert s.info()["ssd"]["is_degraded"]
    assert any("--cache-key-file" in line for line in s.log_lines)
    assert s.stop() == 0 and list(folder.iterdir()) == []
    modes = []
    for key in (keys[0], keys[0], keys[1], keys[0]):
        s = start("--cache-key-file", str(key), *place)
        answer = s.chat(chat, max_tokens=8)
        assert answer.text == plain.text
        modes.append(answer.mode)
        assert s.info()["ssd"]["quarantined"] == 0
        assert s.stop() == 0
    assert modes == ["cold", "ssd", "cold", "ssd"]
    # Whoever can write the folder, but has no key, changes a page and makes its checksum right.
    page = max(folder.rglob("*.page"), key=lambda p: p.stat().st_mtime_ns)
    assert run_mtplx("cache", "verify", "--ssd-session-cache-dir", str(folder)).returncode == 1
    checked = run_mtplx("cache", "verify", "--ssd-session-cache-dir", str(folder), "--cache-key-file",
                        str(keys[0]))
    assert "with another key" in checked.stdout and checked.returncode == 1
    ours = run_mtplx("cache", "ls", "--ssd-session-cache-dir", str(folder), "--cache-key-file",
                     str(keys[0])).stdout
    assert "2 entries" in ours and page.exists()


def test_verify_restore(start):
    chat = conversation(35)
    s = start("--verify-restore", *EXACT)
    cold, warm = s.chat(chat, max_tokens=8), s.chat(chat, max_tokens=8)
    assert s.stop() == 0
    s = start("--verify-restore", *EXACT)
    from_disk = s.chat(chat, max_tokens=8)
    assert (cold.mode, warm.mode, from_disk.mode) == ("cold", "warm_prefix", "ssd")
    assert cold.text == warm.text == from_disk.text
    until = time.monotonic() + 10  # figures are a tenth of a second old
    while 'mtplx_restores_verified_total{result="equal"} 1' not in s.get("/metrics").text:
        assert time.monotonic() < until, s.get("/metrics").text
        time.sleep(0.01)
    assert 'mtplx_restores_verified_total{result="different"} 0' in s.get("/metrics").text


# ---- calls of tools -------------------------------------------------------------------------------

WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a town.",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}]


def with_result(chat, calls):
    return chat + [{"role": "assistant", "content": None, "tool_calls": calls},
                   {"role": "tool", "tool_call_id": calls[0]["id"], "content": "Rain."}]


def test_calls_come_back_as_they_were_sampled(start):
    """However a client writes the arguments, the next turn reuses the call, after a restart, too."""
    chat, s = weather_chat(), start("--ssd-restore", "always")
    body = {"messages": chat, "tools": WEATHER, "temperature": 0, "max_tokens": 60}
    first = s.post("/v1/chat/completions", body).json()
    choice = first["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == ""
    calls = choice["message"]["tool_calls"]
    assert [c["function"]["name"] for c in calls] == ["get_weather"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"town": "Oslo", "days": 3}
    total = first["usage"]["total_tokens"]
    for arguments in ('{"days":3,"town":"Oslo"}', '{\n  "town" : "Oslo",\n  "days" : 3\n}'):
        calls[0]["function"]["arguments"] = arguments
        second = s.chat(with_result(chat, calls), tools=WEATHER)
        assert second.cache["prompt_source"] == "tool_map"
        assert second.cache["ram_tokens"] >= total - 1, second.usage
        asked = s.post("/admin/cache/lookup", {"messages": with_result(chat, calls),
                                               "tools": WEATHER}).json()["prompts"][0]
        assert asked["prompt_source"] == "tool_map"
    # A call that the client has changed is what the client says.
    changed = json.loads(json.dumps(calls))
    changed[0]["function"]["arguments"] = '{"days":4,"town":"Oslo"}'
    other = s.chat(with_result(chat, changed), tools=WEATHER)
    assert other.cache["prompt_source"] == "client" and other.cached < total - 1
    s.wait_for("the folder", lambda i: i["ssd"]["queued_jobs"] == 0 and i["ssd"]["turns"] > 0)
    s.kill()
    s = start("--ssd-restore", "always")
    second = s.chat(with_result(chat, calls), tools=WEATHER)
    assert second.cache["prompt_source"] == "tool_map"
    assert second.cache["ssd_tokens"] >= total - 1, second.usage
    assert s.stop() == 0
    s = start("--canonical-prompts", "--ssd-session-cache", "off")
    again = s.post("/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
    assert again[0]["id"] != calls[0]["id"]
    assert s.chat(with_result(chat, again), tools=WEATHER).cache["prompt_source"] == "client"


def test_calls_in_a_stream(start):
    s = start("--ssd-session-cache", "off")
    events = s.stream(weather_chat(), tools=WEATHER, max_tokens=60)
    deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]" and e["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == ""
    calls = [c for d in deltas for c in d.get("tool_calls", [])]
    assert len(calls) == 1 and calls[0]["index"] == 0
    assert json.loads(calls[0]["function"]["arguments"]) == {"town": "Oslo", "days": 3}
    assert [e["choices"][0]["finish_reason"] for e in events if e != "[DONE]"][-1] == "tool_calls"
    # Without tools, or when none may be called, the same is text.
    for fields in ({}, {"tools": WEATHER, "tool_choice": "none"}):
        events = s.stream(weather_chat(), max_tokens=60, **fields)
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events
                       if e != "[DONE]")
        assert text.strip() == call_text("Oslo", 3)
        assert events[-2]["choices"][0]["finish_reason"] == "stop"
