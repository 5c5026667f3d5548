# SPDX-License-Identifier: MIT
"""A model with recurrent layers, seen from outside: it resumes at boundaries only, so where these are
left decides what the next request costs. The model is tiny and random, and one of its tokens is one
character."""

import subprocess

import pytest

from conftest import EXACT, WRITER, skip_or_fail, text_of

# As templates of models that think: what opens an answer is not what history has in its place.
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
            "{% if add_generation_prompt %}[assistant]<think>{% endif %}")
ENDING = len("[end][assistant]<think>")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    if not WRITER.exists():
        skip_or_fail(f"missing: {WRITER} (it is built with the unit tests)")
    path = tmp_path_factory.mktemp("model") / "hybrid.gguf"
    subprocess.run([str(WRITER), str(path), TEMPLATE], check=True, timeout=60)
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
