# SPDX-License-Identifier: MIT
"""A model with recurrent layers, seen from outside: it resumes at boundaries only, so where these are
left decides what the next request costs. The model is tiny and random, and one of its tokens is one
character."""

import os
import pathlib
import struct
import subprocess
import sys

import pytest

from conftest import EXACT, text_of

# As templates of models that think: what opens an answer is not what history has in its place.
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
            "{% if add_generation_prompt %}[assistant]<think>{% endif %}")
ENDING = len("[end][assistant]<think>")

GENERATE = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
import tinygguf
plain, template = tinygguf.vocab_kvs, sys.argv[3]
tinygguf.vocab_kvs = lambda n, pre: plain(n, pre) + [
    ('tokenizer.chat_template', tinygguf.T_STR, template)]
sys.argv = ['gen_qwen35.py', sys.argv[2], 'dense']
runpy.run_path(sys.path[0] + '/gen_qwen35.py', run_name='__main__')
"""


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    gen = pathlib.Path(os.environ.get("MTPLX_SHARED")
                       or pathlib.Path(__file__).resolve().parents[3] / "shared") / "reference/gen"
    if not (gen / "gen_qwen35.py").exists():
        pytest.skip(f"missing: {gen}/gen_qwen35.py (set MTPLX_SHARED)")
    path = tmp_path_factory.mktemp("model") / "hybrid.gguf"
    done = subprocess.run([sys.executable, "-B", "-c", GENERATE, str(gen), str(path), TEMPLATE],
                          capture_output=True, text=True, timeout=60)
    if done.returncode != 0 and "numpy" in done.stderr:
        pytest.skip("missing: numpy")
    assert done.returncode == 0, done.stderr
    data = bytearray(path.read_bytes())
    at = data.index(b"qwen35.context_length") + len(b"qwen35.context_length") + 4
    data[at:at + 4] = struct.pack("<I", 4096)  # nothing else in the file depends on it
    path.write_bytes(data)
    return path


def first_turn(system, user):
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def expect(answer, mode, restore, cached):
    got = (answer.mode, answer.cache["restore"], answer.cached)
    assert got == (mode, restore, cached), answer.usage
    assert "cache_exact" not in answer.cache


def test_boundaries_are_where_prompts_part(start, hybrid):
    s = start(*EXACT, model=hybrid)
    system = text_of(1, 60)
    chat = first_turn(system, "Tell me about the first thing in your notes, please.")
    stem = len("[system]" + system + "[end][user]")
    cold = s.chat(chat)
    assert (cold.mode, cold.cache["miss"]["reason"]) == ("cold", "no_entry")
    expect(s.chat(chat), "warm_prefix", "exact_prefix", cold.prompt)

    # The next turn leaves the prompt where the answer was opened, another conversation behind the
    # system message. Neither is at an even distance.
    turn = chat + [{"role": "assistant", "content": "So be it."}, {"role": "user", "content": "Go on."}]
    other = first_turn(system, "Something else entirely, if you do not mind.")
    edited = first_turn(system, "Tell me about the second thing in your notes, please.")
    wanted = {"turn": (turn, cold.prompt - ENDING), "other": (other, stem), "edited": (edited, stem)}
    answers = {}
    for name, (messages, cached) in wanted.items():
        answers[name] = s.chat(messages)
        expect(answers[name], "warm_prefix", "boundary", cached)
        assert answers[name].text == s.chat(messages, cache="off").text
    miss = answers["edited"].cache["miss"]
    assert miss["reason"] == "boundary_only"
    assert miss["token_index"] == stem + len("Tell me about the ")
    look = s.post("/admin/cache/lookup", {"messages": first_turn(system, "Tell it.")}).json()
    assert (look["prompts"][0]["restore"], look["prompts"][0]["ram_tokens"]) == ("boundary", stem)
    assert s.stop() == 0

    for name, (messages, cached) in wanted.items():
        s = start(*EXACT, model=hybrid)
        fresh = messages[:-1] + [{"role": "user", "content": messages[-1]["content"] + " Now."}]
        on_disk = s.chat(fresh)
        assert on_disk.mode == "ssd" and on_disk.cache["restore"] in ("boundary", "exact_prefix")
        assert on_disk.cached >= cached, (name, on_disk.usage)
        assert on_disk.text == s.chat(fresh, cache="off").text
        again = s.chat(messages)
        assert again.cached >= cached and again.text == answers[name].text
        assert s.stop() == 0


def test_approximate_restore_is_said(start, hybrid):
    text = text_of(5, 60)
    ask = {"model": "mtplx", "max_tokens": 4, "temperature": 0}
    edit = {**ask, "prompt": text[:-5] + "Quite another end of it."}
    for value, exact in (("0", False), ("1", True)):
        s = start(*EXACT, "--ssd-session-cache", "off", model=hybrid,
                  env={"MTPLX_SESSION_BOUNDARY_TRUE_RESTORE": value})
        assert s.post("/v1/completions", {**ask, "prompt": text, "max_tokens": 0}).status_code == 200
        first = s.post("/v1/completions", edit).json()["usage"]
        assert first["cache"].get("cache_exact", True) is exact, first
        if not exact:
            assert first["cache"]["restore"] == "near_prefix"
            assert first["cache"]["ram_tokens"] == len(text) - 5
        # What came of an approximate state is not there for the same request a second time.
        second = s.post("/v1/completions", edit).json()["usage"]
        assert (second["cache"]["computed_tokens"] == 0) is exact, second
        s.stop()
