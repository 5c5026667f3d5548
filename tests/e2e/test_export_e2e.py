# SPDX-License-Identifier: MIT
"""A conversation taken from one machine to another in a file: other folder, other cache key, same model,
same bits."""

import re

import pytest

from conftest import EXACT, MODEL, run_mtplx, text_of
from test_hybrid_e2e import hybrid  # noqa: F401 (a fixture)

CHAT = [{"role": "system", "content": "You are a helpful storyteller. " + text_of(51, 110)},
        {"role": "user", "content": "Tell me about the first thing in your notes."}]
SCORED = {"max_tokens": 8, "logprobs": True, "top_logprobs": 5}
KEY = {"Authorization": "Bearer key-one"}


def scores(answer):
    return answer.body["choices"][0]["logprobs"]["content"]


def entry_of(home, kind):
    """The name of the longest entry of that kind."""
    rows = [line.split() for line in run_mtplx("cache", "ls", home=home).stdout.splitlines()]
    return max((int(r[2]), r[0]) for r in rows if len(r) > 4 and r[1] == kind)[1]


def export(home, entry, file, *args, code=0):
    done = run_mtplx("cache", "export", entry, str(file), *args, home=home, timeout=120)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def take_in(home, file, *args, code=0, env=None):
    done = run_mtplx("cache", "import", str(file), *args, home=home, env=env, timeout=120)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def stored(home):
    return sorted(p for p in (home / ".mtplx/session_cache").rglob("*")
                  if p.suffix in (".page", ".state", ".session"))


@pytest.fixture
def other(tmp_path):
    home = tmp_path / "other"
    home.mkdir()
    return home


def test_another_machine_goes_on(start, other, tmp_path):
    file, plain = tmp_path / "talk.mtplx", ("--model", str(MODEL))
    s = start("--api-key", "key-one", *EXACT)
    cold = s.chat(CHAT, headers=KEY, **SCORED)
    turn = CHAT + [{"role": "assistant", "content": cold.text}, {"role": "user", "content": "Go on."}]
    cold_turn = s.chat(turn, headers=KEY, cache="off", **SCORED)
    assert s.stop() == 0
    said = export(s.home, entry_of(s.home, "turn"), file, *plain)
    assert "who has the file can read the conversation" in said
    assert file.stat().st_mode & 0o777 == 0o600
    assert "cannot make" in export(s.home, entry_of(s.home, "turn"), file, *plain, code=1)
    for name in (s.home / ".mtplx/session_cache/v1").rglob("*.page"):
        assert bytes.fromhex(name.stem) not in file.read_bytes()

    # Made by a server of the other machine, with another secret; and it runs while the file comes in.
    t = start("--api-key", "key-one", *EXACT, home=other)
    assert t.chat("Hello.", headers=KEY).mode == "cold"
    secrets = [(h / ".mtplx/session_cache/cache.key").read_bytes() for h in (s.home, other)]
    assert secrets[0] != secrets[1]
    said = take_in(other, file, *plain, env={"MTPLX_API_KEY": "key-one"})
    assert "for requests with that API key" in said
    warm = t.chat(CHAT, headers=KEY, **SCORED)
    assert warm.mode == "ssd" and warm.cached >= cold.prompt // 64 * 64, warm.usage  # whole pages
    assert t.stop() == 0
    t = start("--api-key", "key-one", "--verify-restore", *EXACT, home=other)
    next_turn = t.chat(turn, headers=KEY, **SCORED)
    assert next_turn.mode == "ssd" and next_turn.cached > cold.prompt, next_turn.usage
    assert not any("verify:" in line for line in t.log_lines)
    assert t.stop() == 0
    assert scores(warm) == scores(cold) and scores(next_turn) == scores(cold_turn)
    assert run_mtplx("cache", "verify", home=other).returncode == 0


def test_recompute_believes_tokens_only(start, other, tmp_path):
    file, plain = tmp_path / "talk.mtplx", ("--model", str(MODEL))
    s = start(*EXACT)
    cold = s.chat(CHAT, **SCORED)
    assert s.stop() == 0
    export(s.home, entry_of(s.home, "turn"), file, *plain)
    good = file.read_bytes()
    for at, says in ((0, "not an exported conversation"), (40, "header checksum"),
                     (5000, "checksum of page 1"), (len(good) - 100, "checksum of the tokens")):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        assert says in take_in(other, file, *plain, code=1)
    file.write_bytes(good[:-1])
    assert "should have" in take_in(other, file, *plain, code=1)
    file.write_bytes(good)
    assert "--kv-type f16" in take_in(other, file, *plain, "--kv-type", "q8", code=1)
    assert "--activations" in take_in(other, file, *plain, "--activations", "8", code=1)
    assert "other settings" in export(s.home, entry_of(s.home, "turn"), tmp_path / "no", *plain,
                                      "--kv-type", "q8", code=1)
    assert stored(other) == [] and not (tmp_path / "no").exists()

    assert "all of it is what the model computes" in take_in(other, file, *plain, "--recompute")
    names = {p.name for p in stored(other)}
    assert names and all(n in {p.name for p in stored(s.home)} for n in names)
    before = {p: p.stat().st_ino for p in stored(other)}
    take_in(other, file, *plain)
    assert {p: p.stat().st_ino for p in stored(other)} == before  # what is there is kept
    t = start(*EXACT, home=other)
    warm = t.chat(CHAT, **SCORED)
    assert warm.mode == "ssd" and warm.cached >= cold.prompt - 1 and scores(warm) == scores(cold)


def test_the_days_write_budget(start, other, tmp_path):
    file, plain = tmp_path / "talk.mtplx", ("--model", str(MODEL))
    s = start(*EXACT)
    s.chat(CHAT, **SCORED)
    assert s.stop() == 0
    export(s.home, entry_of(s.home, "turn"), file, *plain)
    for budget in (("--ssd-write-budget", "2M"), ()):  # a page is 1.4 MiB
        said = take_in(other, file, *plain, *budget, code=1, env={"MTPLX_SSD_WRITE_BUDGET": "1500K"})
        assert "midnight" in said and [p.suffix for p in stored(other)] == [".page"]
    account = other / ".mtplx/session_cache/v1/written.txt"
    before = int(account.read_text().split()[-1])
    take_in(other, file, *plain, "--ssd-write-budget", "100M")
    rest = sum(p.stat().st_size for p in stored(other) if p.suffix == ".page")
    assert before < 2**21 and int(account.read_text().split()[-1]) == rest


def test_recurrent_model(start, hybrid, other, tmp_path):  # noqa: F811
    file = tmp_path / "talk.mtplx"
    s = start(*EXACT, model=hybrid)
    cold = s.chat(CHAT, **SCORED)
    assert s.stop() == 0
    said = export(s.home, entry_of(s.home, "turn"), file, "--model", str(hybrid))
    assert int(re.search(r"(\d+) states", said).group(1)) > 0
    assert "of another model" in take_in(other, file, "--model", str(MODEL), code=1)
    assert "what the model computes" in take_in(other, file, "--model", str(hybrid), "--recompute")
    turn = CHAT + [{"role": "assistant", "content": cold.text}, {"role": "user", "content": "Go on."}]
    answers = [start(*EXACT, home=home, model=hybrid).chat(turn, **SCORED) for home in (s.home, other)]
    for a in answers:
        assert a.mode == "ssd" and a.cached > 128, a.usage
    assert answers[0].cached == answers[1].cached and scores(answers[0]) == scores(answers[1])
    assert scores(start(*EXACT, home=tmp_path, model=hybrid).chat(turn, **SCORED)) == scores(answers[1])
