/* SPDX-License-Identifier: MIT
 *
 * model_vocab.h: the vocabulary of a model file as the tokeniser wants it described.
 *
 * The tokeniser knows nothing of model files; this is the one place that reads tokenizer.ggml.*.
 */
#ifndef MX_MODEL_VOCAB_H
#define MX_MODEL_VOCAB_H

#include "gguf/gguf.h"
#include "text/tokenizer.h"

/* Fills *out, whose strings lie partly in g and partly in *memory_to_free: use it while g is open,
 * then mx_free(*memory_to_free). On error *memory_to_free is NULL. MX_E_NOT_FOUND when the file has
 * no vocabulary, MX_E_FORMAT when its parts do not fit together. */
mx_err mx_vocab_from_gguf(const mx_gguf *g, mx_vocab_desc *out, void **memory_to_free,
                          mx_errbuf *eb);

#endif
