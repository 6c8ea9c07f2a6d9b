#include "grammar.h"

#include <support/logging.h>
#include <xgrammar/xgrammar.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct mgrpo_vocabulary {
  xgrammar::TokenizerInfo tokens;
};
struct mgrpo_grammar {
  xgrammar::CompiledGrammar compiled;
};
struct mgrpo_matcher {
  xgrammar::GrammarMatcher matcher;
  int64_t words;
};

namespace {

thread_local std::string warning;  // the first one after the last clear

}  // namespace

// The library declares these functions for programs with their own log. A warning names a part of the tag that the grammar does not
// enforce.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string &file, int line, const std::string &message) { throw LogFatalError(file, line, message); }

void LogMessageImpl(const std::string &, int, int level, const std::string &message) {
  if (level >= XGRAMMAR_LOG_LEVEL_WARNING && warning.empty()) warning = message;
}

}  // namespace xgrammar

namespace {

// Runs f and returns the text of its exception, or NULL.
template <typename F>
char *guarded(F f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception &e) {
    const auto *logged = dynamic_cast<const xgrammar::LogFatalError *>(&e);
    return strdup(logged ? static_cast<const std::runtime_error *>(logged)->std::runtime_error::what() : e.what());
  } catch (...) {
    return strdup("an exception of unknown type");
  }
}

}  // namespace

char *mgrpo_vocabulary_new(const char *text, const int64_t *ends, int32_t count, const int32_t *stops, int32_t stop_count,
                           mgrpo_vocabulary **out) {
  return guarded([&] {
    std::vector<std::string> tokens(count);
    int64_t from = 0;
    for (int32_t i = 0; i < count; i++) {
      tokens[i].assign(text + from, ends[i] - from);
      from = ends[i];
    }
    std::vector<int32_t> ending(stops, stops + stop_count);
    *out = new mgrpo_vocabulary{xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, count, ending)};
  });
}

void mgrpo_vocabulary_delete(mgrpo_vocabulary *v) { delete v; }

char *mgrpo_grammar_new(mgrpo_vocabulary *v, const char *tag, int64_t size, mgrpo_grammar **out) {
  return guarded([&] {
    warning.clear();
    xgrammar::GrammarCompiler compiler(v->tokens, /*max_threads=*/1, /*cache_enabled=*/false);
    mgrpo_grammar compiled{compiler.CompileStructuralTag(std::string(tag, size))};
    if (!warning.empty()) throw std::runtime_error(warning);
    *out = new mgrpo_grammar(std::move(compiled));
  });
}

void mgrpo_grammar_delete(mgrpo_grammar *g) { delete g; }

char *mgrpo_matcher_new(mgrpo_grammar *g, mgrpo_matcher **out) {
  return guarded([&] {
    *out =
        new mgrpo_matcher{xgrammar::GrammarMatcher(g->compiled), xgrammar::GetBitmaskSize(g->compiled.GetTokenizerInfo().GetVocabSize())};
  });
}

void mgrpo_matcher_delete(mgrpo_matcher *m) { delete m; }

char *mgrpo_matcher_allowed(mgrpo_matcher *m, int32_t *words) {
  return guarded([&] {
    DLTensor mask{};
    mask.data = words;
    mask.device = {kDLCPU, 0};
    mask.ndim = 1;
    mask.dtype = xgrammar::GetBitmaskDLType();
    mask.shape = &m->words;
    std::memset(words, 0xff, m->words * sizeof *words);  // the matcher does not write it if all tokens are allowed
    m->matcher.FillNextTokenBitmask(&mask);
  });
}

char *mgrpo_matcher_accept(mgrpo_matcher *m, int32_t token, int32_t *ok) {
  return guarded([&] { *ok = m->matcher.AcceptToken(token); });
}

void mgrpo_grammar_free(char *text) { free(text); }
