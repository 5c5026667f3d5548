# SPDX-License-Identifier: MIT
"""The other scripts: packages, include check, counting. Each must fail when it should."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from pytest_env import skip_or_fail  # noqa: E402


@pytest.mark.parametrize("ci, end", ((None, pytest.skip.Exception), ("", pytest.skip.Exception),
                                     ("true", pytest.fail.Exception)))
def test_what_is_missing_fails_in_ci_only(monkeypatch, ci, end):
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(end, match="missing: a thing"):
        skip_or_fail("missing: a thing")


def fakes(tmp_path, **tools):
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name, body in tools.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def install(path, *sets):
    return subprocess.run(["bash", str(ROOT / "scripts/install-deps.sh"), *sets], text=True,
                          env={**os.environ, "PATH": path}, capture_output=True, timeout=60,
                          stdin=subprocess.DEVNULL)


HAVE_ALL_BUT = r'''
shift 2
for p; do case $p in %s) ;; *) printf '%%s=installed ' "$p" ;; esac; done'''


def test_only_missing_packages_are_installed(tmp_path):
    log = tmp_path / "log"
    path = fakes(tmp_path, **{"dpkg-query": HAVE_ALL_BUT % "cmake|libssl-dev", "id": "echo 0",
                              "apt-get": f'echo "$@" >>"{log}"'})
    done = install(path, "build")
    assert done.returncode == 0, done.stderr
    assert "cmake libssl-dev" in done.stderr
    calls = log.read_text().splitlines()
    assert len(calls) == 1 and calls[0].endswith("--no-install-recommends cmake libssl-dev")


def test_nothing_missing_does_nothing(tmp_path):
    path = fakes(tmp_path, **{"dpkg-query": HAVE_ALL_BUT % "none", "apt-get": "exit 9"})
    done = install(path, "build", "model", "test")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_lists_are_refreshed_once(tmp_path):
    log = tmp_path / "log"
    path = fakes(tmp_path, **{
        "dpkg-query": HAVE_ALL_BUT % "cmake", "id": "echo 0",
        "apt-get": f'echo "$@" >>"{log}"; case "$*" in *update*) exit 0 ;; esac\n'
                   f'grep -q update "{log}"'})
    assert install(path, "build").returncode == 0
    assert ["update" in line for line in log.read_text().splitlines()] == [False, True, False]


def test_failure_is_reported(tmp_path):
    path = fakes(tmp_path, **{"dpkg-query": HAVE_ALL_BUT % "cmake", "id": "echo 0",
                              "apt-get": "echo E: no network >&2; exit 100"})
    done = install(path, "build")
    assert done.returncode == 1
    assert "no network" in done.stderr and "apt-get install -y" in done.stderr


def test_without_root_the_command_is_printed(tmp_path):
    path = fakes(tmp_path, **{"dpkg-query": HAVE_ALL_BUT % "cmake", "id": "echo 1000",
                              "sudo": "exit 1", "apt-get": "exit 9"})
    done = install(path, "build")
    assert done.returncode == 1
    assert "run this as root" in done.stderr
    assert "apt-get install -y --no-install-recommends cmake" in done.stderr


def test_through_sudo(tmp_path):
    log = tmp_path / "log"
    path = fakes(tmp_path, **{"dpkg-query": HAVE_ALL_BUT % "cmake", "id": "echo 1000",
                              "sudo": f'[ "$1" = -n ] && exit 0; echo "sudo $@" >>"{log}"'})
    assert install(path, "build").returncode == 0
    assert "apt-get" in log.read_text()


@pytest.fixture
def tree(tmp_path):
    """A small project with the include check in it."""
    for name in ("src/base", "src/kv", "src/kernels", "src/http", "tests", "bench", "scripts"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/check-includes.py", tmp_path / "scripts")
    (tmp_path / "src/base/base.h").write_text(
        "#ifndef B_H\n#define B_H\n#include <stddef.h>\n#endif\n")
    (tmp_path / "src/kernels/kern.h").write_text(
        '#ifndef K_H\n#define K_H\n#include "base/base.h"\n'
        "static inline size_t k(void) { return 1; }\n#endif\n")
    (tmp_path / "src/kv/kv.c").write_text('#include "kernels/kern.h"\n#include "base/base.h"\n')
    return tmp_path


def check(tree):
    done = subprocess.run(["/usr/bin/python3", str(tree / "scripts/check-includes.py")], text=True,
                          capture_output=True, timeout=60)
    return done.returncode, done.stdout


def test_includes_good(tree):
    assert check(tree) == (0, "4 passed, 0 failed\n")


@pytest.mark.parametrize("path, text, words", [
    ("src/kernels/kern.c", '#include "kv/kv_x.h"\n', "kernels may not include kv"),
    ("src/base/base.c", '#  include "kernels/kern.h"\n', "base may not include kernels"),
    ("src/http/http.c", '#include "kernels/kern.h"\n', "http may not include kernels"),
    ("src/kv/kv_a.c", '#include "kv/nowhere.h"\n', "does not exist"),
    ("src/new/new.c", "", "not in the table"),
    ("src/kv/kv_b.h", "size_t f(void);\n", "kv_b.h: not self-contained"),
    ("src/kv/kv_c.h", "static const int twice = 1;\n", "kv_c.h: not self-contained"),
    ("tests/kern.h", "", "the same name"),
])
def test_includes_bad(tree, path, text, words):
    (tree / "src/kv/kv_x.h").write_text("#ifndef X_H\n#define X_H\n#endif\n")
    (tree / path).parent.mkdir(exist_ok=True)
    (tree / path).write_text(text)
    status, out = check(tree)
    assert status == 1
    assert words in out
    assert out.endswith("1 failed\n")


CTEST = """<testsuite><testcase name="a/test_a" classname="x" status="run">
<system-out>%s</system-out></testcase>%s</testsuite>"""


@pytest.mark.parametrize("output, more, want", [
    ("[  PASSED  ] 5 test(s).", "", "5 0 0"),
    ("[  PASSED  ] 4 test(s).\n[  SKIPPED ] 2 test(s), listed below:", "", "4 0 2"),
    ("no cases here", "", "1 0 0"),
    ("[  PASSED  ] 5 test(s).", '<testcase name="b" status="fail"><failure/><system-out>'
     "[  PASSED  ] 3 test(s).\n[  FAILED  ] 2 test(s), listed below:</system-out></testcase>",
     "8 2 0"),
    ("[  PASSED  ] 5 test(s).", '<testcase name="b" status="fail"><failure/><system-out>'
     "[  PASSED  ] 3 test(s).\nERROR: LeakSanitizer</system-out></testcase>", "8 1 0"),
    ("x", '<testcase name="b" status="notrun"><skipped/></testcase>', "1 0 1"),
    ("x", '<testcase name="b"><error/></testcase>', "1 1 0"),
])
def test_counting(tmp_path, output, more, want):
    report = tmp_path / "r.xml"
    report.write_text(CTEST % (output, more))
    done = subprocess.run(["/usr/bin/python3", str(ROOT / "scripts/count-tests.py"), str(report)],
                          text=True, capture_output=True, timeout=30)
    assert done.stdout.strip() == want


def test_counting_a_missing_report_is_an_error(tmp_path):
    done = subprocess.run(["/usr/bin/python3", str(ROOT / "scripts/count-tests.py"),
                           str(tmp_path / "none.xml")], text=True, capture_output=True, timeout=30)
    assert done.returncode != 0


def sysroot(path, folder):
    return subprocess.run(["bash", str(ROOT / "scripts/aarch64-sysroot.sh"), str(folder)],
                          env={**os.environ, "PATH": path}, text=True, capture_output=True,
                          timeout=60, stdin=subprocess.DEVNULL)


# "apt-get ... install" leaves one archive where it was told to; dpkg-deb "unpacks" it.
FAKE_APT = r'''
echo "$@" >>"%s"
for p; do case $p in Dir::Cache=*) cache=${p#*=} ;; esac; done
case "$*" in *" install "*) touch "$cache/archives/one.deb" ;; esac'''


def test_sysroot_is_filled_once_and_without_the_machines_apt(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "build/sysroot"
    path = fakes(tmp_path, **{"apt-get": FAKE_APT % log,
                              "dpkg-deb": 'mkdir -p "$3/usr" && touch "$3/usr/$(basename "$2")"'})
    assert sysroot(path, folder).returncode == 0
    assert [p.name for p in (folder / "usr").iterdir()] == ["one.deb"]
    calls = log.read_text().splitlines()
    assert len(calls) == 2 and " update" in calls[0] and " install --download-only" in calls[1]
    for setting in ("Dir::State", "Dir::State::Lists", "Dir::Cache"):
        assert all(f" {setting}={folder}.apt" in call for call in calls)
    assert all("Dir::State::status=/dev/null" in call for call in calls)
    assert sysroot(path, folder).returncode == 0
    assert log.read_text().splitlines() == calls
    assert not pathlib.Path(f"{folder}.apt").exists()


@pytest.mark.parametrize("bad", ["update", "install", "dpkg-deb"])
def test_sysroot_that_fails_is_not_there(tmp_path, bad):
    folder = tmp_path / "build/sysroot"
    apt = (FAKE_APT % (tmp_path / "log")) + f'\ncase "$*" in *" {bad}"*) exit 100 ;; esac'
    path = fakes(tmp_path, **{"apt-get": apt, "dpkg-deb": f"[ {bad} != dpkg-deb ]"})
    done = sysroot(path, folder)
    assert done.returncode == 1 and "no arm64 libraries" in done.stderr
    assert not folder.exists()


def test_what_failed_is_shown_to_its_end(tmp_path):
    log = tmp_path / "ctest.log"
    parts = "".join(f"[ RUN      ] part_{i}\n[       OK ] part_{i}\n" for i in range(50))
    log.write_text("1/2 Test #1: kv/test_a ....   Passed    0.1 sec\nnot shown\n"
                   "      Start  2: kv/test_b\n"
                   "2/2 Test #2: kv/test_b ....***Failed    0.2 sec\n"
                   + parts + "[  ERROR   ] --- 1 != 2\n" + "chatter\n" * 100 + "its last words\n"
                   "50% tests passed, 1 tests failed out of 2\nthe summary\n")
    done = subprocess.run(
        ["bash", "-c", f"eval \"$(sed -n '/^show_failed()/,/^}}/p' {ROOT}/scripts/run-tests.sh)\"; show_failed {log}"],
        text=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("2/2 Test #2")
    assert lines[1] == "[  ERROR   ] --- 1 != 2"
    assert lines[-1] == "its last words"
    assert lines.count("chatter") == 39 and len(lines) == 42
