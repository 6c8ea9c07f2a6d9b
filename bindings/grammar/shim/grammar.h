// Grammars that constrain sampled tokens: XGrammar behind a C ABI.
//
// Functions that can fail return a text for mgrpo_grammar_free, or NULL for success. A vocabulary and a grammar are immutable and may be
// used by several threads, a matcher by one at a time. Each object keeps the objects alive from which it was made.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define MGRPO_GRAMMAR_API __attribute__((visibility("default")))

typedef struct mgrpo_vocabulary mgrpo_vocabulary;
typedef struct mgrpo_grammar mgrpo_grammar;
typedef struct mgrpo_matcher mgrpo_matcher;

// A vocabulary of `count` tokens: token i is text[ends[i-1]:ends[i]], in UTF-8 or a part of it. An empty token is never allowed.
// A reply ends with one of the tokens `stops`.
MGRPO_GRAMMAR_API char *mgrpo_vocabulary_new(const char *text, const int64_t *ends, int32_t count, const int32_t *stops, int32_t stop_count,
                                             mgrpo_vocabulary **out);
MGRPO_GRAMMAR_API void mgrpo_vocabulary_delete(mgrpo_vocabulary *v);

// Compiles a structural tag of XGrammar, a JSON text. It is an error if the grammar would not enforce every part of the tag.
MGRPO_GRAMMAR_API char *mgrpo_grammar_new(mgrpo_vocabulary *v, const char *tag, int64_t size, mgrpo_grammar **out);
MGRPO_GRAMMAR_API void mgrpo_grammar_delete(mgrpo_grammar *g);

MGRPO_GRAMMAR_API char *mgrpo_matcher_new(mgrpo_grammar *g, mgrpo_matcher **out);
MGRPO_GRAMMAR_API void mgrpo_matcher_delete(mgrpo_matcher *m);

// Sets bit t % 32 of words[t / 32] for each token t that may come next and clears the others; words has (count + 31) / 32 elements.
MGRPO_GRAMMAR_API char *mgrpo_matcher_allowed(mgrpo_matcher *m, int32_t *words);

// Advances by one token. *ok is 0 if the token was not allowed.
MGRPO_GRAMMAR_API char *mgrpo_matcher_accept(mgrpo_matcher *m, int32_t token, int32_t *ok);

MGRPO_GRAMMAR_API void mgrpo_grammar_free(char *text);
#ifdef __cplusplus
}
#endif
