/* SPDX-License-Identifier: MIT
 *
 * The two pieces of JSON that this layer writes itself: strings and error objects. It never reads
 * any, so it needs no JSON library.
 */
#include "base/utf8.h"
#include "http/http.h"

#include <stdio.h>

void mx_http_json_string(mx_buf *out, const char *s, size_t len)
{
    mx_buf_char(out, '"');
    size_t plain = 0; /* start of the bytes that can be copied as they are */
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp = c;
        size_t n = c < 0x80 ? 1 : mx_utf8_decode(s + i, len - i, &cp);
        /* A real U+FFFD has three bytes EF BF BD; rewriting it gives the same three. */
        if (c >= 0x20 && c != '"' && c != '\\' && cp != MX_UTF8_REPLACEMENT) {
            i += n;
            continue;
        }
        mx_buf_append(out, s + plain, i - plain);
        i += n;
        plain = i;
        switch (cp) {
        case '"': mx_buf_str(out, "\\\""); break;
        case '\\': mx_buf_str(out, "\\\\"); break;
        case '\n': mx_buf_str(out, "\\n"); break;
        case '\r': mx_buf_str(out, "\\r"); break;
        case '\t': mx_buf_str(out, "\\t"); break;
        case '\b': mx_buf_str(out, "\\b"); break;
        case '\f': mx_buf_str(out, "\\f"); break;
        case MX_UTF8_REPLACEMENT: mx_buf_str(out, "\xEF\xBF\xBD"); break;
        default: mx_buf_printf(out, "\\u%04x", (unsigned)cp); break;
        }
    }
    mx_buf_append(out, s + plain, len - plain);
    mx_buf_char(out, '"');
}

static const char *error_type(unsigned status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void string_or_null(mx_buf *out, const char *s)
{
    if (s == NULL) {
        mx_buf_str(out, "null");
    } else {
        mx_http_json_string(out, s, strlen(s));
    }
}

void mx_http_error_body(mx_buf *out, unsigned status, const char *message, const char *param,
                        const char *code)
{
    mx_buf_str(out, "{\"error\":{\"message\":");
    string_or_null(out, message);
    mx_buf_str(out, ",\"type\":");
    string_or_null(out, error_type(status));
    mx_buf_str(out, ",\"param\":");
    string_or_null(out, param);
    mx_buf_str(out, ",\"code\":");
    string_or_null(out, code);
    mx_buf_str(out, "}}");
}
