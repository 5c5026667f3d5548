/* SPDX-License-Identifier: MIT
 *
 * api_rig.h: the whole server on a tiny model, and what its answers tell. Header only.
 */
#ifndef MX_API_RIG_H
#define MX_API_RIG_H

#include "../exactness/engine_rig.h"
#include "../http/http_client.h"

#include "api/api.h"

#include <json-c/json.h>

typedef struct service {
    rig g;
    mx_api *api;
    mx_http *http;
} service;

/* A tiny model of this description (its template and words count), not yet served: the test may change
 * s->g.cfg before. */
MX_UNUSED static void service_open(service *s, mx_tiny_spec spec)
{
    spec = rig_spec_of(spec, spec.n_ctx > 2048 ? spec.n_ctx : 2048);
    rig_open(&s->g, &spec, 1, 0);
}

/* Serves it. n_keys API keys: key-0, key-1. Of `switches` the API's flags count. */
MX_UNUSED static void service_serve(service *s, const mx_api_config *switches, size_t n_keys)
{
    static const char *const keys[] = {"key-0", "key-1"};
    mx_errbuf eb = {{0}};
    rig_start(&s->g);
    static const mx_hash256 cache_key = {{1, 2, 3}};
    mx_api_config cfg = *switches;
    cfg.cache_key = &cache_key;
    cfg.api_keys = keys;
    cfg.n_api_keys = n_keys;
    cfg.model_path = s->g.model_path;
    cfg.options_json = cfg.session_json = "{}";
    cfg.cache_mode = "off";
    rig_must(mx_api_create(&s->api, &cfg, &eb), &eb, "api");
    mx_http_config http = {.host = "127.0.0.1", .api_keys = keys, .n_api_keys = n_keys,
                           .handler = mx_api_handle, .handler_arg = s->api};
    rig_must(mx_http_start(&s->http, &http, &eb), &eb, "http");
    mx_api_set_ready(s->api, s->g.model, s->g.engine);
}

MX_UNUSED static void service_start_spec(service *s, const mx_api_config *switches,
                                         mx_tiny_spec spec, size_t n_keys)
{
    service_open(s, spec);
    service_serve(s, switches, n_keys);
}

/* template_text NULL = one that repeats answers as they are. */
MX_UNUSED static void service_start(service *s, const mx_api_config *switches,
                                    const char *template_text, size_t n_keys)
{
    mx_tiny_spec spec = mx_tiny_default();
    spec.chat_template = template_text;
    service_start_spec(s, switches, spec, n_keys);
}

/* May be served again: what is in the cache folder stays. */
MX_UNUSED static void service_end(service *s)
{
    mx_api_stop(s->api);
    mx_api_cancel_all(s->api);
    mx_http_stop(s->http);
    rig_stop(&s->g);
    mx_api_destroy(s->api);
}

MX_UNUSED static void service_stop(service *s)
{
    service_end(s);
    rig_close(&s->g);
}

/* ---- asking -------------------------------------------------------------------------------- */

typedef struct told {
    char text[256], source[16], finish[16];
    size_t prompt, generated, ram;
} told;

MX_UNUSED static struct json_object *field(struct json_object *o, const char *name)
{
    struct json_object *v = NULL;
    if (!json_object_object_get_ex(o, name, &v)) {
        fail_msg("no \"%s\" in %s", name, json_object_to_json_string(o));
    }
    return v;
}

MX_UNUSED static void try_post(service *s, const char *path, int key, const char *body,
                               client_reply *r)
{
    mx_buf b = {0};
    mx_buf_printf(&b, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer key-%d\r\n"
                  "Content-Length: %zu\r\n\r\n%s", path, key, strlen(body), body);
    int fd = client_connect(s->http);
    client_text(fd, b.ptr);
    client_read(fd, r, false);
    close(fd);
    mx_buf_free(&b);
}

MX_UNUSED static void post(service *s, const char *path, int key, const char *body, client_reply *r)
{
    try_post(s, path, key, body, r);
    assert_status(r, 200);
}

/* The model says its first n words (tiny_gguf.h), each once, in this order, and ends: fields of a
 * request, with a comma in front. n <= 8. */
MX_UNUSED static const char *says_words(int n, char out[256])
{
    int at = snprintf(out, 256, ",\"temperature\":0,\"repetition_penalty\":100,"
                      "\"repeat_last_n\":8,\"logit_bias\":{\"329\":50");
    for (int i = 0; i < n; i++) {
        at += snprintf(out + at, 256 - (size_t)at, ",\"%d\":%d", MX_TINY_FIRST_WORD + i, 99 - 6 * i);
    }
    snprintf(out + at, 256 - (size_t)at, "}");
    return out;
}

MX_UNUSED static told read_told(const char *body)
{
    told t = {0};
    struct json_object *o = json_tokener_parse(body);
    struct json_object *choice = json_object_array_get_idx(field(o, "choices"), 0);
    struct json_object *message, *text;
    text = json_object_object_get_ex(choice, "message", &message) ? field(message, "content")
                                                                  : field(choice, "text");
    snprintf(t.text, sizeof t.text, "%s", json_object_get_string(text));
    snprintf(t.finish, sizeof t.finish, "%s",
             json_object_get_string(field(choice, "finish_reason")));
    struct json_object *usage = field(o, "usage"), *cache = field(usage, "cache");
    snprintf(t.source, sizeof t.source, "%s",
             json_object_get_string(field(cache, "prompt_source")));
    t.prompt = (size_t)json_object_get_int(field(usage, "prompt_tokens"));
    t.generated = (size_t)json_object_get_int(field(usage, "completion_tokens"));
    t.ram = (size_t)json_object_get_int(field(cache, "ram_tokens"));
    json_object_put(o);
    return t;
}

#endif
