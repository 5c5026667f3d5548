# SPDX-License-Identifier: MIT
"""Exit codes: 2 = the command line or the environment is wrong, whatever the machine looks like; 1 =
something that was looked at (a file, a folder, a server) is not as it has to be; 0 = done."""

import subprocess

import pytest

from conftest import BIN, MODEL, run_mtplx

GOOD = ("--model", str(MODEL), "--port", "0")


@pytest.fixture
def place(tmp_path):
    """Files and folders that the rows below name as {0}/..."""
    (tmp_path / "home").mkdir()
    (tmp_path / "foreign").mkdir(mode=0o700)
    (tmp_path / "foreign/file").write_text("mine")
    for name, text, mode in (("open.key", "k" * 40, 0o644), ("short.key", "k", 0o600), ("good.key", "k" * 40, 0o600),
                             ("keys", "one\n", 0o600), ("open.keys", "one\n", 0o644), ("bad.keys", "o ne\n", 0o600),
                             ("empty.keys", "# none\n", 0o600), ("request.json", "{}", 0o600),
                             ("not.gguf", "no model", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    return tmp_path


USAGE = [
    ("", "serves a local model", {}),
    ("what", "no command", {}),
    ("help what", "no command", {}),
    ("help start cache", "one too many", {}),
    ("start --nothing", "--nothing", {}),
    ("start --port", "needs a value", {}),
    ("start --port 70000", "--port", {}),
    ("start --kv-type f8", "--kv-type", {}),
    ("start --kv-budget 10", "give the unit", {}),
    ("start --max-context 7", "--max-context", {}),
    ("start --host 0.0.0.0", "Set a key", {}),
    ("start --host 0.0.0.0 --model {0}/none", "Set a key", {}),
    ("start --api-key one --admin-key one", "--admin-key", {}),
    ("start --model {0}/none", "API key number 1", {"MTPLX_API_KEY": "o ne"}),
    ("start", "MTPLX_PORT", {"MTPLX_PORT": "x"}),
    ("inspect", "inspect takes", {}),
    ("inspect --what", "inspect takes", {}),
    ("inspect {0}/not.gguf more", "inspect takes", {}),
    ("bench", "bench knows", {}),
    ("bench model", "bench knows", {}),
    ("bench model {0}/none --batch 0", "--batch", {}),
    ("bench roof --disk-size 10", "give the unit", {}),
    ("cache", "actions", {}),
    ("cache what", "actions", {}),
    ("cache ls more", "options only", {}),
    ("cache ls --cache-key-file", "needs a value", {}),
    ("cache show", "name", {}),
    ("cache show ../../x", "not the name", {}),
    ("cache show ABCDEF", "not the name", {}),
    ("cache show 0123456789 --ssd-session-cache-dir", "needs a value", {}),
    ("cache verify what", "not the name", {}),
    ("cache verify what --ssd-session-cache-dir {0}/none", "not the name", {}),
    ("cache rm", "--all", {}),
    ("cache rm --ssd-session-cache-dir {0}/none", "--all", {}),
    ("cache rm --cache-key-file {0}/none", "--all", {}),
    ("cache rm 0123456789 --all", "--all", {}),
    ("cache rm what", "not the name", {}),
    ("cache gc --ssd-session-cache-max-size 10", "give the unit", {}),
    ("cache gc --ssd-session-cache-ttl 30", "unit", {}),
    ("cache gc", "MTPLX_SSD_SESSION_CACHE_TTL", {"MTPLX_SSD_SESSION_CACHE_TTL": "x"}),
    ("cache gc --ssd-session-cache-dir {0}/none", "MTPLX_SSD_SESSION_CACHE_MAX_SIZE",
     {"MTPLX_SSD_SESSION_CACHE_MAX_SIZE": "10"}),
    ("cache import {0}/none", "MTPLX_SSD_SESSION_CACHE_MAX_SIZE", {"MTPLX_SSD_SESSION_CACHE_MAX_SIZE": "x"}),
    ("cache import", "the file", {}),
    ("cache import {0}/none --ssd-write-budget 10", "give the unit", {}),
    ("cache import {0}/none", "MTPLX_SSD_WRITE_BUDGET", {"MTPLX_SSD_WRITE_BUDGET": "x"}),
    ("cache export 0123456789", "new file", {}),
    ("cache export what {0}/out", "not the name", {}),
    ("cache pin", "a session", {}),
    ("cache unpin --ssd-session-cache-dir {0}/none", "a session", {}),
    ("cache fork", "new name", {}),
    ("cache fork one", "new name", {}),
    ("cache fork one " + "x" * 257, "256 bytes", {}),
    ("cache ttl one", "a time", {}),
    ("cache ttl one 30 --ssd-session-cache-dir {0}/none", "unit", {}),
    ("cache sessions more", "options only", {}),
    ("cache explain", "a file", {}),
    ("cache explain {0}/request.json --url x", "--url", {}),
    ("cache explain {0}/request.json --url https://x", "--url", {}),
    ("cache explain {0}/request.json --url http://", "--url", {}),
    ("cache explain {0}/request.json --url http://a/b", "--url", {}),
    ("cache explain {0}/request.json --url http://a:70000", "--url", {}),
    ("cache explain {0}/none --url http://a:123456789", "--url", {}),
]

FAILURES = [
    ("start --model {0}/none", "--model", {}),
    ("start --model {0}/not.gguf --port 0", "GGUF", {}),
    ("start --host 0.0.0.0 --api-key-file {0}/none", "--api-key-file", {}),
    ("start --api-key-file {0}/open.keys", "chmod 600", {}),
    ("start --api-key-file {0}/bad.keys", "line 1", {}),
    ("start --host 0.0.0.0 --api-key-file {0}/empty.keys", "no key", {}),
    ("start --api-key-file {0}/keys --admin-key one", "--admin-key", {}),
    ("start --cache-key-file {0}/none GOOD", "cannot open", {}),
    ("start --cache-key-file {0}/open.key GOOD", "chmod 600", {}),
    ("start --cache-key-file {0}/open.key --api-key one GOOD", "chmod 600", {}),
    ("start --cache-key-file {0}/short.key GOOD", "32 to", {}),
    ("start --cache-key-file {0}/short.key --api-key one GOOD", "32 to", {}),
    ("inspect {0}/none", "none", {}),
    ("inspect {0}/not.gguf", "GGUF", {}),
    ("bench model {0}/none", "none", {}),
    ("bench roof --threads 1 --repeat 1 --dir {0}/none", "not measured", {}),
    ("cache ls --cache-key-file {0}/none", "cannot open", {}),
    ("cache ls --cache-key-file {0}/open.key", "chmod 600", {}),
    ("cache ls", "chmod 600", {"MTPLX_CACHE_KEY_FILE": "{0}/open.key"}),
    ("cache gc --cache-key-file {0}/short.key", "32 to", {}),
    ("cache import {0}/none --cache-key-file {0}/short.key", "32 to", {}),
    ("cache ls --ssd-session-cache-dir {0}/none", "no folder", {}),
    ("cache show 0123456789 --ssd-session-cache-dir {0}/none", "no folder", {}),
    ("cache show 0123456789 --ssd-session-cache-dir {0}/foreign", "session cache", {}),
    ("cache show 0123456789", "no entry", {}),
    ("cache rm 0123456789", "no entry", {}),
    ("cache rm --all --ssd-session-cache-dir {0}/foreign", "session cache", {}),
    ("cache export 0123456789 {0}/out", "no entry", {}),
    ("cache pin 0123456789", "no entry", {}),
    ("cache pin talk", "no session", {}),
    ("cache unpin talk", "no session", {}),
    ("cache fork talk other", "no session", {}),
    ("cache ttl talk 1d", "no session", {}),
    ("cache sessions --ssd-session-cache-dir {0}/foreign", "session cache", {}),
    ("cache import {0}/none --model {0}/none", "--model", {}),
    ("cache explain {0}/none", "cannot open", {}),
    ("cache explain {0}/request.json --url http://127.0.0.1:1", "is it running", {}),
]


def run(place, line, env):
    args = [a.format(place) for a in line.split() if a != "GOOD"] + list(GOOD if line.endswith("GOOD") else ())
    return run_mtplx(*args, home=place / "home", env={k: v.format(place) for k, v in env.items()}, timeout=60)


@pytest.mark.parametrize("line, word, env", USAGE)
def test_bad_usage_is_2(place, line, word, env):
    done = run(place, line, env)
    assert done.returncode == 2 and word in done.stdout + done.stderr, done
    assert done.stdout == "" or line == ""
    assert list((place / "home").iterdir()) == []  # nothing was begun


@pytest.mark.parametrize("line, word, env", FAILURES)
def test_a_failure_is_1(place, line, word, env):
    done = run(place, line, env)
    assert done.returncode == 1 and word in done.stderr + done.stdout, done
    assert (place / "foreign/file").read_text() == "mine"


def test_the_rest_is_0(place):
    for args in (("--version",), ("--help",), ("help",), ("help", "cache"), ("start", "--help"),
                 ("inspect", "--cpu"), ("cache", "ls"), ("cache", "verify"), ("cache", "sessions"), ("cache", "gc"), ("cache", "rm", "--all"),
                 ("cache", "ls", "--cache-key-file", str(place / "good.key"))):
        done = run_mtplx(*args, home=place / "home")
        assert done.returncode == 0 and done.stderr == "", done
    assert "2 = " in run_mtplx("help").stdout


def test_a_result_that_cannot_be_written_is_1():
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(BIN), "help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output" in done.stderr, done


def test_closed_standard_streams_are_nobodys_file(tmp_path):
    """Without a standard output nothing is printed into the first file that is opened."""
    done = subprocess.run(["sh", "-c", f"exec {BIN} cache ls <&- >&-"], env={"HOME": str(tmp_path)},
                          stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
