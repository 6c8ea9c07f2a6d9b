// decode MODEL THREADS SEQUENCES CONTEXT: decodes with llama.cpp. Its commands are lines on standard input, which
// bench/peers/llama.py writes. Each line gets one line as its answer; an error ends the program.
//   prompts NEW ID,ID,... ID,ID,...   reads a prompt for each sequence into the cache; "ok"
//   prompt                            reads them again; the seconds
//   prefix                            reads them without their last tokens, and saves the state of each sequence; "ok"
//   decode                            restores these states, then samples NEW tokens of each at temperature 1, one pass a token; the
//   seconds score ID,ID,... ID,ID,...         the log-probs of a completion after a prompt
#include <llama.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Ids = std::vector<llama_token>;

[[noreturn]] void fail(const std::string &why) {
  std::cerr << "llama.cpp: " << why << std::endl;
  exit(1);
}

Ids ids_of(const std::string &text) {
  Ids ids;
  std::istringstream in(text);
  for (std::string id; std::getline(in, id, ',');) ids.push_back(std::stoi(id));
  return ids;
}

class Batch {
 public:
  explicit Batch(int32_t capacity) : batch(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch); }
  void add(llama_token id, llama_pos position, llama_seq_id sequence, bool logits) {
    const int i = batch.n_tokens++;
    batch.token[i] = id, batch.pos[i] = position, batch.n_seq_id[i] = 1, batch.seq_id[i][0] = sequence, batch.logits[i] = logits;
  }
  void decode(llama_context *context) {
    if (llama_decode(context, batch) != 0) fail("llama_decode failed");
    batch.n_tokens = 0;
  }
  int32_t size() const { return batch.n_tokens; }

 private:
  llama_batch batch;
};

class Decoder {
 public:
  Decoder(const char *path, int threads, int sequences, int context_each) {
    llama_log_set(
        [](ggml_log_level level, const char *text, void *) {
          if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all();
    auto model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    model = llama_model_load_from_file(path, model_params);
    if (!model) fail(std::string("cannot load ") + path);
    auto params = llama_context_default_params();
    params.n_ctx = sequences * context_each, params.n_seq_max = sequences, params.n_threads = params.n_threads_batch = threads;
    context = llama_init_from_model(model, params);
    if (!context) fail("cannot make a context");
    vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    auto chain = llama_sampler_chain_default_params();
    sampler = llama_sampler_chain_init(chain);
    llama_sampler_chain_add(sampler, llama_sampler_init_dist(1));
  }

  void set(int new_tokens, std::vector<Ids> all) { fresh = new_tokens, prompts = std::move(all); }

  // Reads all prompts, each without its last `left` tokens.
  void prompt(size_t left) {
    llama_memory_clear(llama_get_memory(context), true);
    Batch batch(kBatch);
    for (size_t s = 0; s < prompts.size(); s++)
      for (size_t t = 0; t + left < prompts[s].size(); t++) {
        if (batch.size() == kBatch) batch.decode(context);
        batch.add(prompts[s][t], llama_pos(t), llama_seq_id(s), t + 1 == prompts[s].size());
      }
    batch.decode(context);
    llama_synchronize(context);
  }

  // Copies the state of each sequence: keys, values and the states of recurrent layers, which cannot be shortened by a token.
  void save() {
    states.resize(prompts.size());
    for (size_t s = 0; s < states.size(); s++) {
      states[s].resize(llama_state_seq_get_size(context, llama_seq_id(s)));
      if (llama_state_seq_get_data(context, states[s].data(), states[s].size(), llama_seq_id(s)) != states[s].size())
        fail("a sequence's state was not saved");
    }
  }

  // Puts each sequence back into its saved state.
  void restore() {
    llama_memory_clear(llama_get_memory(context), true);
    for (size_t s = 0; s < states.size(); s++)
      if (llama_state_seq_set_data(context, states[s].data(), states[s].size(), llama_seq_id(s)) != states[s].size())
        fail("a sequence's state was not restored");
  }

  void decode() {
    Batch batch(int32_t(prompts.size()));
    Ids last;
    for (const auto &p : prompts) last.push_back(p.back());
    for (int t = 0; t < fresh; t++) {
      for (size_t s = 0; s < prompts.size(); s++) batch.add(last[s], llama_pos(prompts[s].size()) - 1 + t, llama_seq_id(s), true);
      batch.decode(context);
      for (size_t s = 0; s < prompts.size(); s++) last[s] = llama_sampler_sample(sampler, context, int32_t(s));
    }
  }

  std::vector<double> score(const Ids &prompt, const Ids &completion) {
    llama_memory_clear(llama_get_memory(context), true);
    Batch batch(int32_t(prompt.size() + completion.size()));
    for (size_t t = 0; t + 1 < prompt.size(); t++) batch.add(prompt[t], llama_pos(t), 0, false);
    for (size_t t = 0; t < completion.size(); t++)
      batch.add(t == 0 ? prompt.back() : completion[t - 1], llama_pos(prompt.size() - 1 + t), 0, true);
    batch.decode(context);
    std::vector<double> log_probs;
    for (size_t t = 0; t < completion.size(); t++) {
      const float *logits = llama_get_logits_ith(context, int32_t(prompt.size() - 1 + t));
      double largest = logits[0], sum = 0;
      for (int i = 1; i < vocabulary; i++) largest = std::max<double>(largest, logits[i]);
      for (int i = 0; i < vocabulary; i++) sum += std::exp(logits[i] - largest);
      log_probs.push_back(logits[completion[t]] - largest - std::log(sum));
    }
    return log_probs;
  }

 private:
  static constexpr int32_t kBatch = 2048;  // n_batch
  llama_model *model;
  llama_context *context;
  llama_sampler *sampler;
  int vocabulary, fresh = 0;
  std::vector<Ids> prompts;
  std::vector<std::vector<uint8_t>> states;
};

template <class F>
double seconds(const F &f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 5) fail("usage: decode MODEL THREADS SEQUENCES CONTEXT");
  Decoder decoder(argv[1], atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
  std::cout << llama_print_system_info() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string op, text;
    words >> op;
    if (op == "prompts") {
      int fresh;
      words >> fresh;
      std::vector<Ids> prompts;
      while (words >> text) prompts.push_back(ids_of(text));
      decoder.set(fresh, prompts);
      std::cout << "ok" << std::endl;
    } else if (op == "prompt") {
      std::cout << seconds([&] { decoder.prompt(0); }) << std::endl;
    } else if (op == "prefix") {
      decoder.prompt(1);
      decoder.save();
      std::cout << "ok" << std::endl;
    } else if (op == "decode") {
      decoder.restore();
      std::cout << seconds([&] { decoder.decode(); }) << std::endl;
    } else if (op == "score") {
      std::string prompt;
      words >> prompt >> text;
      std::cout.precision(9);
      for (double p : decoder.score(ids_of(prompt), ids_of(text))) std::cout << p << ' ';
      std::cout << std::endl;
    } else {
      fail("no operation " + op);
    }
  }
}
