/* SPDX-License-Identifier: MIT
 *
 * open_tokenizer.h: the tokeniser of a model file, or of one with a vocabulary only. Needs cmocka.h.
 */
#ifndef MX_OPEN_TOKENIZER_H
#define MX_OPEN_TOKENIZER_H

#include "base/mem.h"
#include "model/model_vocab.h"

static mx_tokenizer *open_tokenizer(const char *path)
{
    mx_gguf *g = NULL;
    mx_vocab_desc d;
    mx_tokenizer *t = NULL;
    void *memory = NULL;
    mx_errbuf eb;
    if (mx_gguf_open(&g, path, &eb) != MX_OK || mx_vocab_from_gguf(g, &d, &memory, &eb) != MX_OK ||
        mx_tokenizer_create(&t, &d, &eb) != MX_OK)
    {
        fail_msg("%s: %s", path, eb.text);
    }
    mx_free(memory);
    mx_gguf_close(g);
    return t;
}

#endif
