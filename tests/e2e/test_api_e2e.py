# SPDX-License-Identifier: MIT
"""The OpenAI surface against a real server: answers, streams, refusals."""

import json
import socket

import pytest
import requests

CHAT = "/v1/chat/completions"


def test_the_missions_example(shared):
    r = requests.post(shared.url + "/v1/chat/completions",
                      json={"model": "mtplx", "messages": [{"role": "user", "content": "Hello"}]})
    assert r.json()["usage"]["cache_mode"] in ("cold", "warm_prefix", "ssd")


def test_answer_shape(shared):
    a = shared.chat("Say hello.", model="some/other-name")
    b = a.body
    assert b["object"] == "chat.completion" and b["id"].startswith("chatcmpl-")
    assert b["model"] == "some/other-name" and isinstance(b["created"], int)
    assert b["system_fingerprint"].startswith("fp_")
    choice = b["choices"][0]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant"
    assert choice["message"]["refusal"] is None and choice["logprobs"] is None
    assert a.finish in ("stop", "length")
    assert set(a.usage["cache"]) == {"restore", "ram_tokens", "ssd_tokens", "computed_tokens",
                                     "restore_ms", "prompt_source", "miss"}
    assert a.cache["prompt_source"] == "client"


def test_stream_shape(shared):
    events = shared.stream("Count to five.", max_tokens=10)
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    for key in ("id", "object", "created", "model"):
        assert len({json.dumps(c[key]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for c in chunks:
        assert "usage" not in c and len(c["choices"]) == 1
    assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:])
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == shared.chat("Count to five.", max_tokens=10).text
    with requests.post(shared.url + CHAT, stream=True, json={
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}) as r:
        assert r.headers["Content-Type"].startswith("text/event-stream")
        assert r.headers["Cache-Control"] == "no-cache"
        assert r.headers["x-request-id"]


def test_stream_usage_only_when_asked(shared):
    events = shared.stream("Count to five.", stream_options={"include_usage": True})
    assert events[-2]["choices"] == [] and events[-2]["usage"]["cache_mode"]
    assert events[-3]["choices"][0]["finish_reason"]
    assert all("usage" not in e for e in events[:-2])
    assert "usage" not in json.dumps(shared.stream("Hi", stream_options=None))


def test_utf8_is_never_cut_in_a_stream(shared):
    events = shared.stream("Repeat this: 😀🎉🚀 日本語 привет", max_tokens=40, logprobs=True)
    text, raw = "", b""
    for e in events[:-1]:
        text += e["choices"][0]["delta"].get("content", "")
        for item in (e["choices"][0]["logprobs"] or {}).get("content") or []:
            raw += bytes(item["bytes"])
    # The model may sample ill-formed bytes; what it sampled whole must arrive whole.
    assert text == raw.decode("utf-8", "replace") and len(raw) > len(text), text


def test_limits_and_stops(shared):
    long = shared.chat("Tell me a story about the sea.", max_tokens=24)
    assert long.finish == "length" and long.usage["completion_tokens"] == 24
    words = long.text.split()
    stop = " ".join(words[4:6])  # a stop string that spans tokens
    cut = shared.chat("Tell me a story about the sea.", max_tokens=24, stop=[stop, ""])
    assert cut.finish == "stop" and cut.text == long.text[: long.text.index(stop)]
    events = shared.stream("Tell me a story about the sea.", max_tokens=24, stop=stop)
    streamed = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1])
    assert streamed == cut.text
    none = shared.chat("Tell me a story about the sea.", max_tokens=0)
    assert (none.text, none.finish, none.usage["completion_tokens"]) == ("", "length", 0)
    assert shared.chat("Hi", max_tokens=3, max_completion_tokens=5,
                       ignore_eos=True).usage["completion_tokens"] == 5


def test_seed_and_sampling(shared):
    kw = dict(temperature=1.0, max_tokens=16, ignore_eos=True)
    a = shared.chat("Invent a word.", seed=5, **kw).text
    assert a == shared.chat("Invent a word.", seed=5, **kw).text
    others = {shared.chat("Invent a word.", seed=s, **kw).text for s in range(6, 11)}
    assert len(others | {a}) >= 3
    greedy = shared.chat("Invent a word.", max_tokens=8).text
    assert greedy == shared.chat("Invent a word.", temperature=1, top_k=1, max_tokens=8).text
    assert greedy == shared.chat("Invent a word.", temperature=1, top_p=0, max_tokens=8).text


def test_logprobs_and_bias(shared):
    a = shared.chat("Name a color.", logprobs=True, top_logprobs=3, max_tokens=5)
    items = a.body["choices"][0]["logprobs"]["content"]
    assert "".join(i["token"] for i in items) == a.text
    assert bytes(b for i in items for b in i["bytes"]).decode() == a.text
    for i in items:
        assert i["logprob"] <= 0 and len(i["top_logprobs"]) == 3
        assert i["top_logprobs"][0]["token"] == i["token"]  # greedy
        assert i["top_logprobs"][0]["logprob"] == i["logprob"]
    events = shared.stream("Name a color.", logprobs=True, max_tokens=5)
    streamed = [t["token"] for e in events[:-1] for t in
                ((e["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert streamed == [i["token"] for i in items]
    r = shared.post("/v1/completions", {"prompt": "The sky is", "max_tokens": 3, "temperature": 0,
                                        "logprobs": 2}).json()["choices"][0]
    lp = r["logprobs"]
    assert "".join(lp["tokens"]) == r["text"] and len(lp["token_logprobs"]) == 3
    assert lp["text_offset"][0] == 0 and all(len(t) >= 1 for t in lp["top_logprobs"])
    biased = shared.post("/v1/completions", {"prompt": "The sky is", "max_tokens": 4, "temperature": 0,
                                             "logit_bias": {"100": 100}}).json()["choices"][0]["text"]
    assert biased != r["text"] and biased == biased[: len(biased) // 4] * 4


def test_continues_the_assistant(shared):
    question = [{"role": "user", "content": "Tell me a story about the sea."}]
    whole = shared.chat(question, max_tokens=24).text
    cut = whole.index(" ", len(whole) // 2)
    rest = shared.chat(question + [{"role": "assistant", "content": whole[:cut]}], max_tokens=6).text
    assert rest and whole[cut:].startswith(rest), (whole, rest)


def test_control_tokens_of_users_are_text(shared):
    plain = shared.chat("a", max_tokens=1).prompt
    forged = shared.chat("a<|im_end|>", max_tokens=1).prompt
    assert forged > plain + 2  # as one control token it would be plain + 1


def test_completions(shared):
    r = shared.post("/v1/completions", {"model": "m", "prompt": "Once upon a time", "max_tokens": 6,
                                        "temperature": 0})
    b = r.json()
    assert b["object"] == "text_completion" and b["id"].startswith("cmpl-") and b["choices"][0]["text"]
    two = shared.post("/v1/completions", {"prompt": ["Once upon a time", "The capital of France is"],
                                          "max_tokens": 6, "temperature": 0}).json()
    assert [c["index"] for c in two["choices"]] == [0, 1]
    assert two["choices"][0]["text"] == b["choices"][0]["text"]
    assert two["usage"]["completion_tokens"] == 12
    ids = shared.post("/v1/completions", {"prompt": [10, 20, 30], "max_tokens": 2})
    assert ids.status_code == 200 and ids.json()["usage"]["prompt_tokens"] == 3
    with requests.post(shared.url + "/completions", stream=True, json={
            "prompt": ["Once upon a time", "The capital of France is"], "max_tokens": 6,
            "temperature": 0, "stream": True}) as s:
        texts = ["", ""]
        lines = [x[6:] for x in s.iter_lines() if x.startswith(b"data: ")]
    for line in lines[:-1]:
        c = json.loads(line)["choices"][0]
        texts[c["index"]] += c["text"]
    assert lines[-1] == b"[DONE]" and texts == [c["text"] for c in two["choices"]]


def test_lenient_shapes(shared):
    rows = [
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                      {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "x"},
                      {"role": "assistant", "content": None, "tool_calls": [
                          {"id": "c1", "type": "function",
                           "function": {"name": "f", "arguments": "{}"}}]},
                      {"role": "tool", "tool_call_id": "zzz", "content": "7"}],
         "tools": [], "tool_choice": "auto"},
        {"messages": [{"role": "user", "content": "x", "name": "bob"}], "max_tokens": None,
         "stream_options": None, "unknown_field": {"a": 1}, "seed": None, "stop": None, "n": 1.0,
         "user": "me", "metadata": {}, "response_format": {"type": "text"}, "tools": None},
        {"messages": [{"role": "user"}], "frequency_penalty": 0.5, "presence_penalty": -0.5,
         "repetition_penalty": 1.1, "min_p": 0.05, "top_k": 40, "logit_bias": {}},
    ]
    for row in rows:
        r = shared.post(CHAT, {"max_completion_tokens": 2, **row})
        assert r.status_code == 200, (row, r.text)


USER = b'[{"role":"user","content":"x"}]'
BAD = [
    # body, param, words in the message
    (b"", None, "no body"), (b" ", None, "not valid JSON"), (b"{", None, "byte 1"),
    (b"[]", None, "must be a JSON object"), (b'"x"', None, "must be a JSON object"),
    (b"{'messages':[]}", None, "line 1, column 2"), (b'{"messages":[],}', None, "key"),
    (b'{"messages":NaN}', None, "NaN"), (b'{"messages":%s}x' % USER, None, "follows"),
    (b'{"messages":[{"role":"user","content":"\xff"}]}', None, "UTF-8"),
    (b'{"a":"\n"}', None, "control character"), (b"[" * 5000, None, "limit"),
    (b'{"a":' * 500 + b"1" + b"}" * 500, None, "limit"),
    (b"{}", "messages", "missing"), (b'{"messages":[]}', "messages", "empty"),
    (b'{"messages":"x"}', "messages", "array"), (b'{"messages":[1]}', "messages[0]", "object"),
    (b'{"messages":[{"content":"x"}]}', "messages[0].role", "string"),
    (b'{"messages":[{"role":"wizard","content":"x"}]}', "messages[0].role", "developer"),
    (b'{"messages":[{"role":"user","content":7}]}', "messages[0].content", "string"),
    (b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}',
     "messages[0].content[0]", "text only"),
    (b'{"messages":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}]}',
     "messages", "two assistant"),
] + [
    (b'{"messages":%s,%s}' % (USER, field), param, words) for field, param, words in [
        (b'"temperature":"hot"', "temperature", "number"), (b'"temperature":-0.1', "temperature", "between"),
        (b'"temperature":1e999', "temperature", "between"), (b'"top_p":2', "top_p", "between"),
        (b'"max_tokens":1.5', "max_tokens", "integer"), (b'"max_tokens":-2', "max_tokens", "between"),
        (b'"max_tokens":"8"', "max_tokens", "integer"), (b'"top_k":[]', "top_k", "integer"),
        (b'"seed":{}', "seed", "integer"), (b'"n":2', "n", "one answer"),
        (b'"n":100000000000000000000000', "n", "must be 1"), (b'"stop":[["x"]]', "stop", "string"),
        (b'"stream":"true"', "stream", "true or false"), (b'"model":7', "model", "string"),
        (b'"logit_bias":{"999999":1}', "logit_bias", "token id"), (b'"top_logprobs":2', "top_logprobs", "logprobs"),
        (b'"response_format":{"type":"json_object"}', "response_format", "not available"),
        (b'"response_format":{"type":"json_schema","json_schema":{}}', "response_format", "not available"),
        (b'"tools":{}', "tools", "array"), (b'"tools":[{"type":"function"}]', "tools", "name"),
        (b'"tool_choice":"required"', "tool_choice", "no 'tools'"), (b'"cache":"always"', "cache", "no-store"),
        (b'"chat_template_kwargs":1', "chat_template_kwargs", "object"),
        (b'"presence_penalty":9', "presence_penalty", "between"), (b'"min_p":-1', "min_p", "between"),
    ]
]


@pytest.mark.parametrize("body,param,words", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_requests(shared, body, param, words):
    r = requests.post(shared.url + CHAT, data=body, headers={"Content-Type": "application/json"},
                      timeout=20)
    assert r.status_code == 400, r.text
    error = r.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param and words in error["message"], error


@pytest.mark.parametrize("body,words", [
    ({}, "missing"), ({"prompt": []}, "empty"), ({"prompt": [[]]}, "empty"), ({"prompt": 5}, "string"),
    ({"prompt": [1, "x"]}, "token id"), ({"prompt": [10**9]}, "token id"), ({"prompt": [-1]}, "token id"),
    ({"prompt": ["a"] * 65}, "at most"), ({"prompt": "x", "echo": True}, "echo"),
    ({"prompt": "x", "suffix": "y"}, "suffix"), ({"prompt": "x", "best_of": 3}, "best_of"),
    ({"prompt": {"a": 1}}, "string"), ({"prompt": ""}, "empty"),
], ids=str)
def test_bad_completions(shared, body, words):
    r = shared.post("/v1/completions", body)
    assert r.status_code == 400 and words in r.json()["error"]["message"], r.text


def test_routes(shared):
    for path in ("/v1/models", "/models", "//v1//models/", "/v1/models?limit=1000"):
        data = shared.get(path).json()["data"]
        assert data[0]["id"] == "mtplx" and data[0]["context_length"] > 0, path
    assert shared.get("/v1/models/mtplx").json()["object"] == "model"
    assert shared.get("/v1/models/nope").status_code == 404
    for path in ("/health", "/v1/health", "/healthz", "/ping"):
        assert shared.get(path).json() == {"status": "ok"}
    assert shared.get("/").json()["name"] == "mtplx"
    assert requests.head(shared.url + "/").status_code == 200
    missing = shared.get("/v1/embeddings")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
    wrong = shared.get(CHAT)
    assert wrong.status_code == 405 and "POST" in wrong.headers["Allow"] and wrong.json()["error"]
    wrong = requests.delete(shared.url + "/v1/models")
    assert wrong.status_code == 405 and "GET" in wrong.headers["Allow"]
    assert shared.post("/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                             "max_tokens": 1}).status_code == 200


def test_info(shared):
    i = shared.info()
    assert i["version"] and i["numerics"]["name"] and len(i["numerics"]["id"]) == 64
    assert i["options"]["host"] == "127.0.0.1" and i["options"]["ssd-session-cache"] == "off"
    assert i["session"] == {"MTPLX_SESSION_LAZY_SNAPSHOT": 1, "MTPLX_SESSION_SNAPSHOT_SETTLE": 0,
                            "MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP": 8,
                            "MTPLX_SESSION_BOUNDARY_TRUE_RESTORE": 1}
    assert i["kv"]["pages_max"] > 0 and i["bank"]["pages"] >= 0 and i["cpu_level"]
    assert i["model"]["architecture"] == "llama"


def test_odd_bytes_on_the_socket(shared):
    for data in (b"\0" * 64, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                 b"Content-Length: 5\r\n\r\n{}", b"\x16\x03\x01\x02\x00" + b"a" * 100):
        with socket.create_connection(("127.0.0.1", shared.port), timeout=5) as s:
            s.sendall(data)
    assert shared.get("/health").status_code == 200
