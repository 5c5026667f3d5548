# SPDX-License-Identifier: MIT
"""Keys, isolation, and what an administrator sees: everything here is about who may know what."""

import os

import pytest

from conftest import EXACT, run_mtplx, text_of


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
    assert bad.returncode == 2 and "chmod 600" in bad.stderr
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
    s = start("--api-key-file", str(keys), "--ssd-session-cache", "off")
    for name, status in (("key-one", 200), ("key-two", 200), ("# team", 401), ("key-three", 401)):
        r = s.post("/v1/chat/completions", {"messages": conversation(5, 5), "max_tokens": 1},
                   headers=key(name))
        assert r.status_code == status, name
    keys.write_text("\n")
    bad = run_mtplx("start", "--model", "/dev/null", "--api-key-file", str(keys), home=tmp_path)
    assert bad.returncode == 1 and "has no key" in bad.stderr
