#include "load.h"

#include <dlfcn.h>
#include <string.h>

static struct {
  char *(*vocabulary_new)(const char *, const int64_t *, int32_t, const int32_t *, int32_t, mgrpo_vocabulary **);
  void (*vocabulary_delete)(mgrpo_vocabulary *);
  char *(*grammar_new)(mgrpo_vocabulary *, const char *, int64_t, mgrpo_grammar **);
  void (*grammar_delete)(mgrpo_grammar *);
  char *(*matcher_new)(mgrpo_grammar *, mgrpo_matcher **);
  void (*matcher_delete)(mgrpo_matcher *);
  char *(*matcher_allowed)(mgrpo_matcher *, int32_t *);
  char *(*matcher_accept)(mgrpo_matcher *, int32_t, int32_t *);
  void (*free)(char *);
} f;

char *load_grammar(void) {
  void *library = dlopen("libmgrpo_grammar.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) return strdup(dlerror());
  const struct {
    const char *name;
    void *to;
  } all[] = {
      {"mgrpo_vocabulary_new", &f.vocabulary_new},
      {"mgrpo_vocabulary_delete", &f.vocabulary_delete},
      {"mgrpo_grammar_new", &f.grammar_new},
      {"mgrpo_grammar_delete", &f.grammar_delete},
      {"mgrpo_matcher_new", &f.matcher_new},
      {"mgrpo_matcher_delete", &f.matcher_delete},
      {"mgrpo_matcher_allowed", &f.matcher_allowed},
      {"mgrpo_matcher_accept", &f.matcher_accept},
      {"mgrpo_grammar_free", &f.free},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    void *found = dlsym(library, all[i].name);
    if (!found) return strdup(dlerror());
    memcpy(all[i].to, &found, sizeof found);
  }
  return NULL;
}

char *mgrpo_vocabulary_new(const char *text, const int64_t *ends, int32_t count, const int32_t *stops, int32_t stop_count,
                           mgrpo_vocabulary **out) {
  return f.vocabulary_new(text, ends, count, stops, stop_count, out);
}
void mgrpo_vocabulary_delete(mgrpo_vocabulary *v) { f.vocabulary_delete(v); }
char *mgrpo_grammar_new(mgrpo_vocabulary *v, const char *tag, int64_t size, mgrpo_grammar **out) {
  return f.grammar_new(v, tag, size, out);
}
void mgrpo_grammar_delete(mgrpo_grammar *g) { f.grammar_delete(g); }
char *mgrpo_matcher_new(mgrpo_grammar *g, mgrpo_matcher **out) { return f.matcher_new(g, out); }
void mgrpo_matcher_delete(mgrpo_matcher *m) { f.matcher_delete(m); }
char *mgrpo_matcher_allowed(mgrpo_matcher *m, int32_t *words) { return f.matcher_allowed(m, words); }
char *mgrpo_matcher_accept(mgrpo_matcher *m, int32_t token, int32_t *ok) { return f.matcher_accept(m, token, ok); }
void mgrpo_grammar_free(char *text) { f.free(text); }
