/* SPDX-License-Identifier: MIT
 *
 * Usage and logprobs as JSON. usage.cache tells where the prompt came from in numbers that add up:
 * ram + ssd + computed = prompt_tokens, and cached_tokens counts only what was really not computed.
 */
#include "api/api_write.h"

#include "base/utf8.h"

#include <math.h>

void mx_usage_add(mx_usage *u, const mx_request_stats *s, bool is_first)
{
    if (is_first) {
        u->total = *s;
        return;
    }
    mx_request_stats *t = &u->total;
    t->is_approximate = t->is_approximate || s->is_approximate;
    t->n_prompt += s->n_prompt;
    t->n_ram += s->n_ram;
    t->n_ssd += s->n_ssd;
    t->n_computed += s->n_computed;
    t->n_generated += s->n_generated;
    t->queue_us += s->queue_us;
    t->restore_us += s->restore_us;
    t->prefill_us += s->prefill_us;
    t->decode_us += s->decode_us;
    t->cache_mode = t->n_ssd > 0 ? MX_MODE_SSD : t->n_ram > 0 ? MX_MODE_WARM_PREFIX : MX_MODE_COLD;
}

const char *mx_usage_mode(const mx_usage *u)
{
    switch (u->total.cache_mode) {
    case MX_MODE_WARM_PREFIX: return "warm_prefix";
    case MX_MODE_SSD: return "ssd";
    case MX_MODE_COLD: break;
    }
    return "cold";
}

const char *mx_finish_name(mx_finish f)
{
    switch (f) {
    case MX_FINISH_STOP: return "stop";
    case MX_FINISH_LENGTH: return "length";
    case MX_FINISH_CANCELLED: return "cancelled";
    case MX_FINISH_ERROR: return "error";
    case MX_FINISH_NONE: break;
    }
    return "none";
}

/* What both begin with, and what comes behind it; null where that is nothing. */
static void write_snippet(mx_buf *b, const mx_tokenizer *t, const mx_miss_text *m,
                          const int32_t *ids, uint32_t n)
{
    mx_buf text = {0};
    if (n == 0) {
        mx_buf_str(b, "null");
        return;
    }
    for (uint32_t i = 0; i < m->n_common + n; i++) {
        int32_t id = i < m->n_common ? m->common[i] : ids[i - m->n_common];
        mx_str piece = mx_tokenizer_piece(t, id, true);
        mx_buf_append(&text, piece.ptr, piece.len);
    }
    mx_http_json_string(b, text.ptr == NULL ? "" : text.ptr, text.len);
    b->failed = b->failed || text.failed;
    mx_buf_free(&text);
}

void mx_write_miss(mx_buf *b, const mx_usage *u)
{
    const mx_request_stats *s = &u->total;
    const mx_miss_text *m = &s->miss;
    if (s->miss_reason == NULL) {
        mx_buf_str(b, "null");
        return;
    }
    mx_buf_printf(b, "{\"reason\":\"%s\",\"token_index\":%zu,\"cost_ms\":%.3f,\"stored\":",
                  s->miss_reason, m->token_index, (double)s->prefill_us / 1000.0);
    write_snippet(b, u->tokenizer, m, m->stored, u->hides_stored ? 0 : m->n_stored);
    mx_buf_str(b, ",\"asked\":");
    write_snippet(b, u->tokenizer, m, m->asked, m->n_asked);
    mx_buf_char(b, '}');
}

void mx_write_cache_fields(mx_buf *b, const mx_usage *u)
{
    const mx_request_stats *s = &u->total;
    mx_buf_printf(b, "\"cache_mode\":\"%s\",\"cache\":{\"restore\":\"%s\",\"ram_tokens\":%zu,"
                  "\"ssd_tokens\":%zu,\"computed_tokens\":%zu,\"restore_ms\":%.3f,"
                  "\"prompt_source\":\"%s\"",
                  mx_usage_mode(u), mx_restore_kind_name(s->restore), s->n_ram, s->n_ssd,
                  s->n_computed, (double)s->restore_us / 1000.0, u->prompt_source);
    if (s->is_approximate) {
        mx_buf_str(b, ",\"cache_exact\":false");
    }
    mx_buf_str(b, ",\"miss\":");
    mx_write_miss(b, u);
    mx_buf_str(b, "}");
}

void mx_write_usage(mx_buf *b, const mx_usage *u)
{
    const mx_request_stats *s = &u->total;
    mx_buf_printf(b, "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":0},",
                  s->n_prompt, s->n_generated, s->n_prompt + s->n_generated,
                  s->n_ram + s->n_ssd);
    mx_write_cache_fields(b, u);
    mx_buf_str(b, "}");
}

void mx_write_timings(mx_buf *b, const mx_usage *u)
{
    const mx_request_stats *s = &u->total;
    double prompt_ms = (double)s->prefill_us / 1000.0, predicted_ms = (double)s->decode_us / 1000.0;
    mx_buf_printf(b,
                  "{\"queue_ms\":%.3f,\"restore_ms\":%.3f,\"cache_n\":%zu,\"prompt_n\":%zu,"
                  "\"prompt_ms\":%.3f,\"predicted_n\":%zu,\"predicted_ms\":%.3f}",
                  (double)s->queue_us / 1000.0, (double)s->restore_us / 1000.0, s->n_ram + s->n_ssd,
                  s->n_computed, prompt_ms, s->n_generated, predicted_ms);
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void clean_json_string(mx_buf *b, mx_str s)
{
    mx_http_json_string(b, s.ptr == NULL ? "" : s.ptr, s.len);
}

static void write_logprob(mx_buf *b, float v)
{
    /* JSON has no infinities; a token that cannot be has this value at OpenAI, too. */
    mx_buf_printf(b, "%.6f", isfinite(v) ? (double)v : -9999.0);
}

static void write_bytes(mx_buf *b, mx_str s)
{
    mx_buf_char(b, '[');
    for (size_t i = 0; i < s.len; i++) {
        mx_buf_printf(b, i == 0 ? "%u" : ",%u", (unsigned char)s.ptr[i]);
    }
    mx_buf_char(b, ']');
}

static void write_chat_item(mx_buf *b, mx_str piece, float logprob)
{
    mx_buf_str(b, "{\"token\":");
    clean_json_string(b, piece);
    mx_buf_str(b, ",\"logprob\":");
    write_logprob(b, logprob);
    mx_buf_str(b, ",\"bytes\":");
    write_bytes(b, piece);
}

static void add_chat(mx_logprobs *l, const mx_tokenizer *t, const mx_sample *s, mx_str piece)
{
    mx_buf *b = &l->items;
    if (l->n > 0) {
        mx_buf_char(b, ',');
    }
    write_chat_item(b, piece, s->logprob);
    mx_buf_str(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < s->n_top; i++) {
        if (i > 0) {
            mx_buf_char(b, ',');
        }
        write_chat_item(b, mx_tokenizer_piece(t, s->top[i].token, true), s->top[i].logprob);
        mx_buf_char(b, '}');
    }
    mx_buf_str(b, "]}");
}

static size_t count_characters(mx_str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        n += ((unsigned char)s.ptr[i] & 0xC0) != 0x80;
    }
    return n;
}

static void add_text(mx_logprobs *l, const mx_tokenizer *t, const mx_sample *s, mx_str piece)
{
    if (l->n > 0) {
        mx_buf_char(&l->tokens, ',');
        mx_buf_char(&l->values, ',');
        mx_buf_char(&l->top, ',');
        mx_buf_char(&l->offsets, ',');
    }
    clean_json_string(&l->tokens, piece);
    write_logprob(&l->values, s->logprob);
    mx_buf_printf(&l->offsets, "%zu", l->text_offset);
    l->text_offset += count_characters(piece);
    mx_buf_char(&l->top, '{');
    for (uint32_t i = 0; i < s->n_top; i++) {
        if (i > 0) {
            mx_buf_char(&l->top, ',');
        }
        clean_json_string(&l->top, mx_tokenizer_piece(t, s->top[i].token, true));
        mx_buf_char(&l->top, ':');
        write_logprob(&l->top, s->top[i].logprob);
    }
    mx_buf_char(&l->top, '}');
}

void mx_logprobs_add(mx_logprobs *l, bool is_chat, const mx_tokenizer *t, const mx_output *out)
{
    for (size_t i = 0; i < out->n_tokens; i++) {
        const mx_token_event *e = &out->tokens[i];
        mx_str piece = {out->pieces.ptr + e->text_begin, e->text_end - e->text_begin};
        if (is_chat) {
            add_chat(l, t, &e->sample, piece);
        } else {
            add_text(l, t, &e->sample, piece);
        }
        l->n++;
    }
}

void mx_write_logprobs(mx_buf *b, mx_logprobs *l, bool is_chat)
{
    if (is_chat) {
        mx_buf_str(b, "{\"content\":[");
        mx_buf_append(b, l->items.ptr, l->items.len);
        mx_buf_str(b, "],\"refusal\":null}");
    } else {
        const struct { const char *name; mx_buf *list; } lists[] = {
            {"{\"tokens\":[", &l->tokens}, {"],\"token_logprobs\":[", &l->values},
            {"],\"top_logprobs\":[", &l->top}, {"],\"text_offset\":[", &l->offsets},
        };
        for (size_t i = 0; i < MX_COUNT(lists); i++) {
            mx_buf_str(b, lists[i].name);
            mx_buf_append(b, lists[i].list->ptr, lists[i].list->len);
        }
        mx_buf_str(b, "]}");
    }
    b->failed = b->failed || l->items.failed || l->tokens.failed || l->values.failed
                || l->top.failed || l->offsets.failed;
    mx_buf_clear(&l->items);
    mx_buf_clear(&l->tokens);
    mx_buf_clear(&l->values);
    mx_buf_clear(&l->top);
    mx_buf_clear(&l->offsets);
    l->n = 0;
}

void mx_logprobs_free(mx_logprobs *l)
{
    mx_buf_free(&l->items);
    mx_buf_free(&l->tokens);
    mx_buf_free(&l->values);
    mx_buf_free(&l->top);
    mx_buf_free(&l->offsets);
}
