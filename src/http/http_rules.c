/* SPDX-License-Identifier: MIT
 *
 * The checks a request must pass, as pure functions of its text: path, framing, Host, Origin, key.
 *
 * Host and Origin together keep web pages of other places out of a server that trusts its own
 * machine. A page elsewhere can send a "simple" POST here without asking, but the browser adds its
 * Origin; and a name of its own that it points at 127.0.0.1 (DNS rebinding) shows up as Host.
 * Addresses are always accepted as Host, because only names can be rebound.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "http_internal.h"

#include <arpa/inet.h>
#include <strings.h>

bool http_token_eq(const char *a, const char *b)
{
    return strcasecmp(a, b) == 0;
}

static bool str_is(mx_str s, const char *name)
{
    return s.len == strlen(name) && strncasecmp(s.ptr, name, s.len) == 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    char low = (char)(c | 0x20);
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* ---- path ------------------------------------------------------------------------------------ */

/* Length of "http://" or "https://" at the start, else 0. */
static size_t scheme_len(const char *s)
{
    if (strncasecmp(s, "http://", 7) == 0) {
        return 7;
    }
    return strncasecmp(s, "https://", 8) == 0 ? 8 : 0;
}

mx_str http_target_authority(const char *target)
{
    size_t skip = scheme_len(target);
    if (skip == 0) {
        return (mx_str){0};
    }
    return (mx_str){target + skip, strcspn(target + skip, "/?#")};
}

char *http_normalise_path(const char *target)
{
    mx_str authority = http_target_authority(target);
    if (authority.ptr != NULL) {
        target = authority.ptr + authority.len;
        if (*target != '/') {
            return mx_strdup("/");
        }
    } else if (strcmp(target, "*") == 0) {
        return mx_strdup("*");
    } else if (*target != '/') {
        return NULL;
    }
    size_t len = strcspn(target, "?#");
    char *out = mx_alloc(len + 1);
    if (out == NULL) {
        return NULL;
    }
    size_t n = 0;
    bool is_good = true;
    for (size_t i = 0; i < len && is_good; i++) {
        char c = target[i];
        if (c == '%') {
            int hi = i + 2 < len ? hex_digit(target[i + 1]) : -1;
            int lo = hi >= 0 ? hex_digit(target[i + 2]) : -1;
            is_good = lo >= 0;
            c = (char)(is_good ? hi << 4 | lo : 0);
            i += 2;
        }
        is_good = is_good && (unsigned char)c >= 0x20 && c != 0x7f;
        if (c == '/' && n > 0 && out[n - 1] == '/') {
            continue;
        }
        out[n++] = c;
    }
    if (!is_good || !mx_utf8_valid(out, n)) {
        mx_free(out);
        return NULL;
    }
    while (n > 1 && out[n - 1] == '/') {
        n--;
    }
    out[n] = '\0';
    return out;
}

/* ---- Host and Origin ------------------------------------------------------------------------- */

/* The name or address of "name[:port]" without port and brackets; false when malformed. */
static bool split_host(mx_str in, mx_str *name)
{
    mx_str port;
    if (in.len > 0 && in.ptr[0] == '[') {
        const char *close = memchr(in.ptr, ']', in.len);
        if (close == NULL) {
            return false;
        }
        *name = (mx_str){in.ptr + 1, (size_t)(close - in.ptr) - 1};
        port = (mx_str){close + 1, (size_t)(in.ptr + in.len - close) - 1};
    } else {
        const char *colon = memchr(in.ptr, ':', in.len);
        size_t len = colon == NULL ? in.len : (size_t)(colon - in.ptr);
        *name = (mx_str){in.ptr, len};
        port = (mx_str){in.ptr + len, in.len - len};
    }
    if (port.len > 0 && port.ptr[0] != ':') {
        return false;
    }
    for (size_t i = 1; i < port.len; i++) {
        if (port.ptr[i] < '0' || port.ptr[i] > '9') {
            return false;
        }
    }
    return name->len > 0;
}

static bool is_address(mx_str name, bool *is_loopback)
{
    char text[64];
    struct in_addr v4;
    struct in6_addr v6;
    *is_loopback = false;
    if (name.len >= sizeof text) {
        return false;
    }
    memcpy(text, name.ptr, name.len);
    text[name.len] = '\0';
    if (inet_pton(AF_INET, text, &v4) == 1) {
        *is_loopback = ntohl(v4.s_addr) >> 24 == 127;
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6) == 1) {
        *is_loopback = IN6_IS_ADDR_LOOPBACK(&v6);
        return true;
    }
    return false;
}

static bool is_loopback_name(mx_str name)
{
    static const char suffix[] = ".localhost"; /* RFC 6761: never leaves the machine */
    bool is_loopback;
    if (is_address(name, &is_loopback)) {
        return is_loopback;
    }
    return str_is(name, "localhost") ||
           (name.len > sizeof suffix - 1 &&
            strncasecmp(name.ptr + name.len - (sizeof suffix - 1), suffix, sizeof suffix - 1) == 0);
}

bool http_host_allowed(const mx_http_config *cfg, mx_str host_header)
{
    mx_str name;
    bool is_loopback;
    if (!split_host(host_header, &name)) {
        return false;
    }
    if (is_address(name, &is_loopback) || is_loopback_name(name) || str_is(name, cfg->host)) {
        return true;
    }
    for (size_t i = 0; i < cfg->n_hosts; i++) {
        if (strcmp(cfg->hosts[i], "*") == 0 || str_is(name, cfg->hosts[i]) ||
            str_is(host_header, cfg->hosts[i]))
        {
            return true;
        }
    }
    return false;
}

bool http_origin_allowed(const mx_http_config *cfg, mx_str origin, mx_str host_header)
{
    for (size_t i = 0; i < cfg->n_origins; i++) {
        if (strcmp(cfg->origins[i], "*") == 0 || str_is(origin, cfg->origins[i])) {
            return true;
        }
    }
    char text[300];
    if (origin.len >= sizeof text) {
        return false;
    }
    memcpy(text, origin.ptr, origin.len);
    text[origin.len] = '\0';
    mx_str authority = http_target_authority(text);
    mx_str name;
    if (authority.ptr == NULL || authority.ptr + authority.len != text + origin.len ||
        !split_host(authority, &name))
    {
        return false; /* "null", files, extensions: only when they are listed */
    }
    /* The page that this server itself served; its Host has been checked already. */
    bool is_same = authority.len == host_header.len && authority.len > 0 &&
                   strncasecmp(authority.ptr, host_header.ptr, authority.len) == 0;
    return is_same || is_loopback_name(name);
}

/* ---- keys ------------------------------------------------------------------------------------ */

typedef struct key_list {
    const mx_hash256 *hashes; /* [n] */
    size_t n;
} key_list;

/* Hashes are compared, all of them, byte by byte to the end: the time tells neither which key came
 * close nor how long a key is. */
static int find_key(key_list keys, const char *given)
{
    int found = -1;
    mx_hash256 hash = mx_sha256_of(given, strlen(given));
    for (size_t i = 0; i < keys.n; i++) {
        unsigned diff = 0;
        for (size_t b = 0; b < sizeof hash.b; b++) {
            diff |= (unsigned)(hash.b[b] ^ keys.hashes[i].b[b]);
        }
        int mask = (int)((diff - 1) >> 31); /* 1 when equal */
        found = mask * (int)i + (1 - mask) * found;
    }
    return found;
}

/* Each of the headers may carry it; the first that fits counts, so that an administrator can send
 * his own key in one and the API key that he means in another. */
static int find_in_headers(key_list keys, const mx_http_exchange *x)
{
    int found = -1;
    const char *authorization = mx_http_header(x, "authorization");
    if (authorization != NULL && strncasecmp(authorization, "Bearer ", 7) == 0) {
        const char *key = authorization + 7;
        found = find_key(keys, key + strspn(key, " "));
    }
    static const char *const names[] = {"x-api-key", "api-key"};
    for (size_t i = 0; i < MX_COUNT(names) && found < 0; i++) {
        const char *key = mx_http_header(x, names[i]);
        if (key != NULL) {
            found = find_key(keys, key);
        }
    }
    return found;
}

int http_find_key(const mx_http *h, const mx_http_exchange *x)
{
    return find_in_headers((key_list){h->key_hashes, h->cfg.n_api_keys}, x);
}

bool http_has_admin_key(const mx_http *h, const mx_http_exchange *x)
{
    return h->cfg.admin_key != NULL && find_in_headers((key_list){&h->admin_hash, 1}, x) == 0;
}

/* ---- framing --------------------------------------------------------------------------------- */

static size_t count_header(const mx_http_exchange *x, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_headers; i++) {
        n += http_token_eq(x->header_text.ptr + x->headers[i].name, name);
    }
    return n;
}

static bool is_header_name(const char *s)
{
    static const char extra[] = "!#$%&'*+-.^_`|~";
    for (const char *p = s; *p != '\0'; p++) {
        char low = (char)(*p | 0x20);
        if (!(low >= 'a' && low <= 'z') && !(*p >= '0' && *p <= '9') && strchr(extra, *p) == NULL) {
            return false;
        }
    }
    return *s != '\0';
}

/* Two servers that disagree on where a request ends let a client hide a second one in the first.
 * This server may sit behind a proxy, so whatever could be read in two ways is refused. */
const char *http_check_framing(const mx_http_exchange *x, const char *version, unsigned *status,
                               uint64_t *body_len, bool *is_chunked)
{
    *status = 400;
    *body_len = 0;
    *is_chunked = false;
    for (size_t i = 0; i < x->n_headers; i++) {
        if (!is_header_name(x->header_text.ptr + x->headers[i].name)) {
            return "A header name contains a character that is not allowed.";
        }
    }
    size_t n_length = count_header(x, "content-length");
    size_t n_coding = count_header(x, "transfer-encoding");
    if (n_length > 0 && n_coding > 0) {
        return "Send either Content-Length or Transfer-Encoding, not both.";
    }
    if (n_length > 1 || n_coding > 1) {
        return "Content-Length or Transfer-Encoding is repeated.";
    }
    if (count_header(x, "host") > 1) {
        return "The Host header is repeated.";
    }
    if (n_coding == 1) {
        if (http_token_eq(version, "HTTP/1.0")) {
            return "HTTP/1.0 has no Transfer-Encoding.";
        }
        if (!http_token_eq(mx_http_header(x, "transfer-encoding"), "chunked")) {
            *status = 501;
            return "The only Transfer-Encoding understood here is chunked.";
        }
        *is_chunked = true;
    }
    if (n_length == 1) {
        const char *text = mx_http_header(x, "content-length");
        size_t n = strspn(text, "0123456789");
        if (n == 0 || text[n] != '\0') {
            return "Content-Length is not a number.";
        }
        for (; *text != '\0'; text++) {
            uint64_t digit = (uint64_t)(*text - '0');
            if (*body_len > (UINT64_MAX - digit) / 10) {
                *status = 413;
                return "Content-Length is larger than any body accepted here.";
            }
            *body_len = *body_len * 10 + digit;
        }
    }
    return NULL;
}

const char *http_status_text(unsigned status)
{
    switch (status) {
    case 200: return "OK";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 503: return "Service Unavailable";
    default: return status < 400 ? "OK" : "Error";
    }
}
