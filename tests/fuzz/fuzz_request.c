// link: mx_api
/* SPDX-License-Identifier: MIT
 *
 * Fuzzes what a client can send before the engine sees it: JSON, parameters, messages, rendering.
 * The first byte chooses between chat and plain completions, and Anthropic's messages.
 */
#include "api/api_chat.h"
#include "api/api_messages.h"
#include "api/api_params.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char template_text[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static void render(struct json_object *body)
{
    mx_template *t = NULL;
    if (mx_template_parse(&t, mx_str_of(template_text), NULL) != MX_OK) {
        abort();
    }
    mx_chat_env env = {.template = t, .bos_text = MX_STR("<s>"), .eos_text = MX_STR("</s>"),
                       .max_text_bytes = 1 << 20};
    mx_problem p = {0};
    mx_rendered r;
    bool ok = mx_chat_render(&env, body, &r, &p);
    if (ok == (p.status != 0)) {
        abort(); /* refused without a reason, or a reason without a refusal */
    }
    size_t end = 0;
    for (size_t i = 0; ok && i < r.n_markup; i++) {
        if (r.markup[i].begin < end || r.markup[i].end > r.text.len) {
            abort(); /* spans are sorted and inside the text */
        }
        end = r.markup[i].end;
    }
    mx_rendered_free(&r);
    mx_template_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0) {
        return 0;
    }
    bool is_messages = (bytes[0] & 2) != 0, is_chat = is_messages || (bytes[0] & 1) == 0;
    struct json_object *body = NULL;
    mx_errbuf eb = {0};
    if (mx_json_parse(&body, (mx_str){(const char *)bytes + 1, n - 1}, &eb) != MX_OK) {
        if (eb.text[0] == '\0') {
            abort();
        }
        return 0;
    }
    if (is_messages && json_object_is_type(body, json_type_object)) {
        struct json_object *chat;
        mx_problem p = {0};
        bool ok = mx_messages_to_chat(body, &chat, &p);
        if (ok != (chat != NULL) || ok == (p.status != 0) || p.status == 500) {
            abort(); /* what is written is always JSON */
        }
        (void)mx_messages_is_request(body);
        json_object_put(body);
        body = chat;
    }
    if (json_object_is_type(body, json_type_object)) {
        mx_api_params a;
        mx_problem p = {0};
        bool ok = mx_api_params_read(&a, body, is_chat, 1000, &p);
        if (ok == (p.status != 0)) {
            abort();
        }
        mx_api_params_free(&a);
        if (is_chat) {
            render(body);
        }
    }
    json_object_put(body);
    return 0;
}
