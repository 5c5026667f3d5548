# SPDX-License-Identifier: MIT
"""Anthropic's Messages API with the default model: calls of tools come back under their ids, on disk,
too, and a stream says the same as an object."""

import json

from conftest import weather_chat

TOOLS = [{"name": "get_weather", "description": "The weather of a town.",
          "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}}}]


def body_of(messages, **fields):
    """The chat of the other surface, its system message where it belongs here."""
    return {"model": "claude-anything", "system": messages[0]["content"], "messages": messages[1:],
            "tools": TOOLS, "temperature": 0, "max_tokens": 60, **fields}


def with_result(messages, use, arguments):
    return messages + [
        {"role": "assistant", "content": [dict(use, input=arguments)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"],
                                      "content": [{"type": "text", "text": "Rain."}]}]}]


def prompt_tokens(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def ask(s, body):
    r = s.post("/v1/messages?beta=true", body, headers={"anthropic-version": "2023-06-01"})
    assert r.status_code == 200, r.text
    return r.json()


def test_errors_of_the_server_itself_are_in_its_words(start):
    """Those that are told before a handler sees the request: no key, a body that is too large."""
    s = start("--api-key", "secret-one")
    for path, words in (("/v1/messages", {"type": "error"}), ("/v1/messages/count_tokens", {"type": "error"}),
                        ("/v1/chat/completions", {})):
        r = s.post(path, {}, headers={"Authorization": "Bearer wrong"})
        assert r.status_code == 401
        assert r.json()["error"]["type"] == "authentication_error"
        assert {k: v for k, v in r.json().items() if k == "type"} == words
        assert ("request_id" in r.json()) == bool(words)
    r = s.post("/v1/chat/completions", {}, headers={"anthropic-version": "2023-06-01", "Authorization": "Bearer wrong"})
    assert r.json()["type"] == "error"
    assert s.stop() == 0


def test_calls_come_back_as_they_were_sampled(start):
    chat, s = weather_chat(), start("--ssd-restore", "always")
    first = ask(s, body_of(chat))
    assert first["stop_reason"] == "tool_use" and first["model"] == "claude-anything"
    (use,) = first["content"]
    assert use["type"] == "tool_use" and use["id"].startswith("toolu_")
    assert use["input"] == {"town": "Oslo", "days": 3}
    total = prompt_tokens(first["usage"]) + first["usage"]["output_tokens"]
    again = body_of(with_result(chat, use, {"days": 3, "town": "Oslo"}), max_tokens=8)
    second = ask(s, again)
    assert second["usage"]["cache"]["prompt_source"] == "tool_map"
    assert second["usage"]["cache_read_input_tokens"] >= total - 1, second["usage"]
    lookup = s.post("/admin/cache/lookup", again).json()["prompts"][0]
    assert lookup["prompt_source"] == "tool_map"
    count = s.post("/v1/messages/count_tokens", again).json()["input_tokens"]
    assert count == prompt_tokens(second["usage"]) == lookup["prompt_tokens"]
    s.wait_for("the folder", lambda i: i["ssd"]["queued_jobs"] == 0 and i["ssd"]["turns"] > 0)
    s.kill()
    s = start("--ssd-restore", "always")
    third = ask(s, again)
    assert third["content"] == second["content"]
    assert third["usage"]["cache"]["prompt_source"] == "tool_map"
    assert third["usage"]["cache"]["ssd_tokens"] >= total - 1, third["usage"]
    assert s.stop() == 0


def test_streams(start):
    s = start("--ssd-session-cache", "off")
    r = s.post("/v1/messages", body_of(weather_chat(), stream=True))
    assert r.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in r.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
    names = [e["type"] for e in events]
    assert names == ["message_start", "ping", "content_block_start", "content_block_delta",
                     "content_block_stop", "message_delta", "message_stop"]
    assert json.loads(events[3]["delta"]["partial_json"]) == {"town": "Oslo", "days": 3}
    start_usage, end_usage = events[0]["message"]["usage"], events[-2]["usage"]
    assert prompt_tokens(start_usage) == prompt_tokens(end_usage) > 100
    assert end_usage["output_tokens"] > 10
    # Without tools the same is text, in as many pieces as it came.
    body = body_of(weather_chat(), stream=True)
    del body["tools"]
    text = "".join(json.loads(line[6:])["delta"]["text"] for line in
                   s.post("/v1/messages", body).text.split("\n")
                   if line.startswith('data: {"type":"content_block_delta"'))
    assert text.strip().startswith("<tool_call>") and text.strip().endswith("</tool_call>")
