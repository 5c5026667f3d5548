# SPDX-License-Identifier: MIT
"""`mtplx inspect` and what it refuses; a model in several files; memory while loading and serving; an
idle server."""

import os
import re
import shutil
import struct
import time

from conftest import MODEL, run_mtplx, text_of

MIB = 1 << 20


def gguf_str(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def gguf(path, keys, tensors=()):
    """A file with keys {name: str | int | [str]} and tensors (name, n, type, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for k, v in keys.items():
        out += gguf_str(k)
        if isinstance(v, str):
            out += struct.pack("<I", 8) + gguf_str(v)
        elif isinstance(v, list):
            out += struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(gguf_str, v))
        else:
            out += struct.pack("<II", 4, v)
    at, data = 0, b""
    for name, n, kind, n_bytes in tensors:
        out += gguf_str(name) + struct.pack("<IQIQ", 1, n, kind, len(data))
        data += bytes(-(-n_bytes // 32) * 32)
    out += bytes(-len(out) % 32) + data
    path.write_bytes(out)
    return path


def test_inspect_shows_the_default_model():
    r = run_mtplx("inspect", str(MODEL))
    assert r.returncode == 0, r.stdout + r.stderr
    for wanted in (r"file +.*SmolLM2", r"architecture +llama", r"layers 30, embedding 576",
                   r"tensors +272, 61 F32 .*, 210 Q4_1 ", r"pre-tokeniser smollm, 49152 tokens",
                   r"chat template +yes", r"MTP blocks +none", r"weights \d+\.\d MiB, work space",
                   r"runs here +yes, with \w+ instructions"):
        assert re.search(wanted, r.stdout), (wanted, r.stdout)


def test_inspect_names_what_is_not_supported(tmp_path):
    base = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 32,
            "llama.attention.head_count": 2, "llama.feed_forward_length": 32,
            "llama.context_length": 64, "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["a", "b"]}
    cases = {
        "architecture": ({**base, "general.architecture": "mamba2"}, [],
                         r'runs here +no: architecture "mamba2" .* llama, .*qwen3'),
        "type": (base, [("token_embd.weight", 256, 16, 66)],
                 r"runs here +no: .*IQ2_XXS, which is not supported; supported are .*Q4_K"),
        "pre": ({**base, "tokenizer.ggml.pre": "klingon"}, [],
                r'runs here +no: the pre-tokeniser "klingon" is not supported; supported are '
                r".*llama-bpe"),
        "tokeniser": ({**base, "tokenizer.ggml.model": "rwkv"}, [], r"runs here +no: .*rwkv"),
        "tensor": (base, [], r"runs here +no: the file lacks tensor token_embd.weight"),
    }
    for name, (keys, tensors, wanted) in cases.items():
        r = run_mtplx("inspect", str(gguf(tmp_path / f"{name}.gguf", keys, tensors)))
        assert r.returncode == 1 and re.search(wanted, r.stdout), (name, r.stdout, r.stderr)
        started = run_mtplx("start", "--port", "0", "--model", str(tmp_path / f"{name}.gguf"),
                            home=tmp_path)
        assert started.returncode == 1, (name, started)
        said = re.search(r"runs here +no: (.*)", r.stdout).group(1)
        assert said in started.stderr, (name, said, started.stderr)


def test_inspect_counts_prediction_blocks(tmp_path):
    keys = {"general.architecture": "other", "other.nextn_predict_layers": 2}
    r = run_mtplx("inspect", str(gguf(tmp_path / "m.gguf", keys)))
    assert re.search(r"MTP blocks +2, .*recognised, not used", r.stdout), r.stdout


def test_inspect_usage(tmp_path):
    assert run_mtplx("inspect").returncode == 2
    assert run_mtplx("inspect", "--gpu").returncode == 2
    r = run_mtplx("inspect", str(tmp_path / "absent.gguf"))
    assert r.returncode == 1 and "No such file" in r.stdout


def split(path, folder, n_parts):
    """Cuts a model file into parts with its metadata in the first."""
    b = path.read_bytes()
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    blocks = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144),
              14: (256, 210)}
    n_tensors, n_keys = struct.unpack_from("<QQ", b, 8)
    at = 24

    def skip(kind, at):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", b, at)[0]
        if kind == 9:
            kind, n = struct.unpack_from("<IQ", b, at)
            at += 12
            for _ in range(n if kind == 8 else 0):
                at = skip(8, at)
            return at + (0 if kind == 8 else n * sizes[kind])
        return at + sizes[kind]

    for _ in range(n_keys):
        at += 8 + struct.unpack_from("<Q", b, at)[0]
        at = skip(struct.unpack_from("<I", b, at)[0], at + 4)
    keys, tensors = b[24:at], []
    for _ in range(n_tensors):
        begin = at
        at += 8 + struct.unpack_from("<Q", b, at)[0]
        n_dims = struct.unpack_from("<I", b, at)[0]
        dims = struct.unpack_from(f"<{n_dims}Q", b, at + 4)
        at += 4 + 8 * n_dims
        kind, offset = struct.unpack_from("<IQ", b, at)
        at += 12
        n = 1
        for d in dims:
            n *= d
        tensors.append((b[begin:at - 8], offset, n // blocks[kind][0] * blocks[kind][1]))
    start = at + -at % 32
    for i in range(n_parts):
        mine = tensors[n_tensors * i // n_parts:n_tensors * (i + 1) // n_parts]
        own = b"".join(gguf_str(k) + struct.pack(f, t, v) for k, f, t, v in (
            ("split.no", "<IH", 2, i), ("split.count", "<IH", 2, n_parts),
            ("split.tensors.count", "<Ii", 5, n_tensors)))
        head = b"GGUF" + struct.pack("<IQQ", 3, len(mine), (n_keys if i == 0 else 0) + 3)
        head += (keys if i == 0 else b"") + own
        data = b""
        for description, offset, n in mine:
            head += description + struct.pack("<Q", len(data))
            data += b[start + offset:start + offset + n]
            data += bytes(-len(data) % 32)
        name = folder / f"m-{i + 1:05}-of-{n_parts:05}.gguf"
        name.write_bytes(head + bytes(-len(head) % 32) + data)
    return folder / f"m-00001-of-{n_parts:05}.gguf"


def test_a_model_in_three_files_answers_the_same(start, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    first = split(MODEL, folder, 3)
    question = [{"role": "user", "content": "Name three rivers."}]
    want = start("--ssd-session-cache", "off").chat(question, max_tokens=24).text
    for name in (first, folder / "m-00003-of-00003.gguf"):
        server = start("--ssd-session-cache", "off", model=name)
        assert server.chat(question, max_tokens=24).text == want
        server.stop()
    assert "in 3 files" in run_mtplx("inspect", str(first)).stdout
    os.remove(folder / "m-00002-of-00003.gguf")
    r = run_mtplx("start", "--port", "0", "--model", str(first), home=tmp_path)
    assert r.returncode == 1 and "part 2 of 3 is missing" in r.stderr, r.stderr
    shutil.rmtree(folder)


def memory(server):
    text = open(f"/proc/{server.process.pid}/status").read()
    return {k: int(re.search(k + r":\s+(\d+) kB", text).group(1)) * 1024
            for k in ("VmHWM", "VmRSS")}


def test_memory_is_one_copy_of_the_model(start):
    """Bounds of the requirements; a copy more of the weights would be 2.0 times the file."""
    size = MODEL.stat().st_size
    server = start()
    peak = memory(server)["VmHWM"]
    assert peak <= 1.25 * size, f"{peak / MIB:.1f} MiB while loading {size / MIB:.1f} MiB"
    server.chat(text_of(1, 1500), max_tokens=40)
    kv = server.info()["kv"]
    used = kv["page_bytes"] * kv["pages_used"]
    assert used > 10 * MIB
    now = memory(server)["VmRSS"]
    bound = 1.10 * size + used + 64 * MIB
    assert now <= bound, f"{now / MIB:.1f} MiB resident, at most {bound / MIB:.1f} expected"


def test_an_idle_server_uses_no_cpu(start):
    def cpu_seconds():
        fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    server = start()
    server.chat(text_of(2, 200), max_tokens=8)
    server.wait_durable()
    time.sleep(0.5)  # what is left to tidy up
    before = cpu_seconds()
    time.sleep(3)
    used = cpu_seconds() - before
    assert used <= 0.1, f"{used:.2f} s of CPU in 3 s without work"
