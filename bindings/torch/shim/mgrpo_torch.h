// C ABI of libmgrpo_torch: the functions of LibTorch that the Go package bindings/torch uses.
//
// A tensor handle is a heap-allocated at::Tensor*, like gotch's Ctensor. Every call that can fail returns its
// result and its error together: error is NULL or a message that mgt_free releases. A call with a device fails
// on any thread except the one that opened the device. Dtypes are
// c10::ScalarType numbers. Calls with names ending in _ write into their first tensor.
#pragma once
#include <stdint.h>

#include "mgrpo/glu.h"
#include "mgrpo/policy_loss.h"

#ifdef MGT_BUILD
#define MGT_API __attribute__((visibility("default")))
#else
#define MGT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { MGT_MAX_DIM = 8 };

typedef struct mgt_device mgt_device;

typedef struct {
  void *handle;  // owned by the caller; NULL without a tensor to return
  char *error;
  int64_t sizes[MGT_MAX_DIM];
  int32_t dim;
  int32_t dtype;
} mgt_tensor;

typedef struct {
  mgt_tensor first, second;
  char *error;
} mgt_pair;

typedef struct {
  mgt_tensor dh, logp, entropy;
  int32_t status;  // of mgrpo/status.h, if error is NULL
  int64_t row;     // the row of MGRPO_NON_FINITE
  char *error;
} mgt_policy_loss;

typedef struct {
  double value;
  char *error;
} mgt_scalar;

typedef struct {
  void *value;
  char *error;
} mgt_pointer;

typedef struct {
  int64_t allocated;  // bytes in live tensors
  int64_t reserved;   // bytes held by the allocator
  int64_t peak;       // highest allocated since the start of the process or mgt_reset_peak
  char *error;
} mgt_memory_stats;

// Process. Only mgt_cuda_load makes LibTorch look for CUDA (shim_test checks this).
MGT_API void mgt_free(char *error);
// Returns the failed kernel's status (mgrpo/status.h), or MGRPO_OK if the error does not come from one of our kernels.
MGT_API int32_t mgt_error_status(const char *error);
MGT_API const char *mgt_built_version(void);   // of the headers
MGT_API const char *mgt_loaded_version(void);  // of the library found at run time
MGT_API const char *mgt_cpu_features(void);    // space-separated
// Sets whether products of float32 matrices in training on the CPU round their factors to bfloat16. Returns whether they do. With AMX
// they are LibTorch's products, and all of its products round. With only avx512_bf16 they are ours (product.h): products of low-rank
// adapters do not round, and products with bfloat16 weights do, in training or not (mgrpo_linear_bf16_cpu). On other processors none
// round.
MGT_API int mgt_round_factors(int on);
MGT_API void mgt_set_training(int on);  // of the calling thread: products of float32 matrices round only in passes of training
// Sets whether operations on GPUs use algorithms with the same bits for the same inputs. An operation without such an algorithm fails. By
// default attention adds the gradient of queries in an order that changes. Call it before the first product on a GPU.
MGT_API void mgt_deterministic(int on);
MGT_API int64_t mgt_thread(void);        // number of the calling OS thread, never reused
MGT_API int64_t mgt_live_handles(void);  // handles returned by this library and not yet dropped
// Loads libmgrpo_torch_cuda.so from this library's folder, once. Must come before any other LibTorch work
// of the process: LibTorch looks for CUDA only once. Returns the number of GPUs.
MGT_API mgt_scalar mgt_cuda_load(void);
MGT_API int mgt_cuda_driver(void);  // whether the NVIDIA driver's library can be loaded

// Device: one thread's use of one CPU or GPU.
MGT_API mgt_pointer mgt_device_open(int cuda, int index, int threads);
MGT_API void mgt_device_close(mgt_device *d);
MGT_API char *mgt_device_move(mgt_device *d);  // the calling thread takes the device over from a thread that has ended
MGT_API void mgt_use_threads(int n);           // of our kernels' OpenMP, for the calling thread; ends its earlier team
MGT_API int mgt_threads(void);                 // of our kernels' OpenMP, for the calling thread
MGT_API char *mgt_device_wait(mgt_device *d);  // until all work of a GPU is done; returns a persistent error again
MGT_API void mgt_set_grad_mode(int on);        // of the calling thread
MGT_API mgt_pointer mgt_stream(mgt_device *d);
MGT_API mgt_memory_stats mgt_memory(mgt_device *d);
MGT_API char *mgt_reset_peak(mgt_device *d);

// CUDA graphs. Between open and close the device's current stream is the graph's own. Work that is launched there after
// mgt_graph_capture becomes part of the graph. Every graph must be closed, and finally dropped.
MGT_API mgt_pointer mgt_graph_open(mgt_device *d);
MGT_API char *mgt_graph_capture(mgt_device *d, void *graph);
MGT_API char *mgt_graph_close(mgt_device *d, void *graph);
MGT_API char *mgt_graph_replay(mgt_device *d, void *graph);
MGT_API char *mgt_graph_drop(mgt_device *d, void *graph);

// Handles.
MGT_API void mgt_drop(void **handles, int64_t n);
MGT_API void *mgt_share(void *t);                      // a second, uncounted handle of the same tensor, which gotch owns
MGT_API mgt_tensor mgt_adopt(mgt_device *d, void *t);  // a new handle of the same tensor; the caller still owns t
MGT_API mgt_pointer mgt_data(mgt_device *d, void *t);  // error unless contiguous

// Making and copying.
MGT_API mgt_tensor mgt_empty(mgt_device *d, int dtype, const int64_t *sizes, int64_t dim, int kept);  // kept: in large pages
MGT_API mgt_tensor mgt_full(mgt_device *d, int dtype, double value, const int64_t *sizes, int64_t dim);
MGT_API mgt_tensor mgt_from_host(mgt_device *d, const void *data, int dtype, const int64_t *sizes, int64_t dim);
MGT_API char *mgt_to_host(mgt_device *d, void *t, int dtype, void *out, int64_t numel);
MGT_API char *mgt_set_host_(mgt_device *d, void *t, const void *data, int dtype, int64_t numel);
MGT_API char *mgt_copy_(mgt_device *d, void *t, void *src);
MGT_API mgt_scalar mgt_item(mgt_device *d, void *t);
MGT_API mgt_tensor mgt_to(mgt_device *d, void *t, int dtype);
MGT_API mgt_tensor mgt_contiguous(mgt_device *d, void *t);
MGT_API mgt_tensor mgt_clone(mgt_device *d, void *t);
MGT_API mgt_tensor mgt_detach(mgt_device *d, void *t);

// Views and indexing.
MGT_API mgt_tensor mgt_view(mgt_device *d, void *t, const int64_t *sizes, int64_t dim);
MGT_API mgt_tensor mgt_narrow(mgt_device *d, void *t, int64_t dim, int64_t start, int64_t length);
MGT_API mgt_tensor mgt_select(mgt_device *d, void *t, int64_t dim, int64_t index);
MGT_API mgt_tensor mgt_transpose(mgt_device *d, void *t, int64_t dim0, int64_t dim1);
MGT_API mgt_tensor mgt_concat(mgt_device *d, void *a, void *b);  // along the last dimension
MGT_API mgt_tensor mgt_index_select(mgt_device *d, void *t, int64_t dim, void *index);
MGT_API char *mgt_index_copy_(mgt_device *d, void *t, int64_t dim, void *index, void *src);

// Arithmetic.
MGT_API mgt_tensor mgt_add(mgt_device *d, void *a, void *b);
MGT_API mgt_tensor mgt_mul(mgt_device *d, void *a, void *b);
MGT_API mgt_tensor mgt_scale(mgt_device *d, void *t, double factor);
MGT_API mgt_tensor mgt_matmul(mgt_device *d, void *a, void *b);
MGT_API mgt_tensor mgt_gelu(mgt_device *d, void *t);  // its tanh form
MGT_API mgt_tensor mgt_sigmoid(mgt_device *d, void *t);
MGT_API mgt_tensor mgt_sum(mgt_device *d, void *t);   // float64
MGT_API mgt_tensor mgt_norm(mgt_device *d, void *t);  // float64, Euclidean
MGT_API mgt_scalar mgt_equal(mgt_device *d, void *a, void *b);
MGT_API char *mgt_add_scaled_(mgt_device *d, void *t, void *u, double factor);
MGT_API char *mgt_scale_(mgt_device *d, void *t, double factor);
MGT_API char *mgt_fill_(mgt_device *d, void *t, double value);

// Autograd.
MGT_API char *mgt_require_grad_(mgt_device *d, void *t, int on);
MGT_API mgt_tensor mgt_grad(mgt_device *d, void *t);  // NULL handle and NULL error: no gradient yet
MGT_API char *mgt_set_grad_(mgt_device *d, void *t, void *grad_or_null);
MGT_API int mgt_has_history(void *t);                             // whether t leads gradients back to a leaf, or is one
MGT_API char *mgt_set_data_(mgt_device *d, void *t, void *data);  // t shares data's storage from now on, and stays the same variable
MGT_API char *mgt_backward(mgt_device *d, void **outputs, void **grads, int64_t n);  // grads[i] NULL: scalar output, gradient 1

// Layers of a decoder; shapes are in bindings/torch.
MGT_API mgt_tensor mgt_linear(mgt_device *d, void *x, void *w, void *b_or_null);
// As mgt_linear, or mgt_linear_quant if w is blocks of a type. On a GPU the result of bfloat16 inputs is float32. cap (cap.h) is 0 for
// none.
MGT_API mgt_tensor mgt_logits(mgt_device *d, void *x, void *w, int32_t type, double cap);
// Low-rank adapters (mgrpo/lora.h): adapters[i] is the fp32 tensor of adapter i's values, and counts[i] is the number of its parts. The
// parts of all adapters follow each other. y is changed and returned.
struct mgrpo_lora_part;
MGT_API mgt_tensor mgt_lora_add_(mgt_device *d, void *y, void *x, void **adapters, const int64_t *counts, int64_t n,
                                 const struct mgrpo_lora_part *parts, void *which_or_null);
MGT_API mgt_tensor mgt_embedding(mgt_device *d, void *w, void *ids);
// Matrices in blocks (mgrpo/quant.h): parts[i] is uint8 [rows, bytes of a row] of types[i]. The parts follow each other in rows.
MGT_API mgt_tensor mgt_linear_quant(mgt_device *d, void *x, void **parts, const int32_t *types, int64_t n, void *b_or_null);
MGT_API mgt_tensor mgt_embedding_quant(mgt_device *d, void *w, int32_t type, int64_t k, int dtype, void *ids);
MGT_API mgt_tensor mgt_rms_norm(mgt_device *d, void *x, void *w, double offset, double eps);
MGT_API mgt_pair mgt_add_rms_norm(mgt_device *d, void *x, void *residual, void *w, double offset, double eps);
MGT_API mgt_tensor mgt_glu(mgt_device *d, int gates, void *gate_up);  // gates is of enum mgrpo_gates
// How a product of queries, keys and values becomes heads. Absent tensors are NULL.
typedef struct {
  int64_t heads, kv_heads;
  void *q_norm, *k_norm;
  double offset, eps;
  void *cos, *sin;
  void *pos;
} mgt_heads;
typedef struct {
  mgt_tensor q, k, v;
  char *error;
} mgt_split;
MGT_API mgt_split mgt_split_heads(mgt_device *d, void *qkv, mgt_heads how);
MGT_API mgt_tensor mgt_cache_heads(mgt_device *d, void *qkv, mgt_heads how, void *k_cache, void *v_cache, void *table, void *sequence);
MGT_API mgt_tensor mgt_attention_packed(mgt_device *d, void *q, void *k, void *v, void *cu, void *follows_or_null, void *sinks_or_null,
                                        double scale, int64_t window);
MGT_API mgt_tensor mgt_attention_cached(mgt_device *d, void *q, void *k_cache, void *v_cache, void *table, void *sequence, void *length,
                                        void *sinks_or_null, double scale, int64_t window);
// The short convolutions of mgrpo/short_conv.h: gated, or with silu.
MGT_API mgt_tensor mgt_short_conv_packed(mgt_device *d, void *bcx, void *w, void *bias_or_null, int silu, void *cu, void *follows_or_null);
MGT_API mgt_tensor mgt_short_conv_states(mgt_device *d, void *u, void *w, void *bias_or_null, void *states, void *slot, void *pos);
MGT_API mgt_tensor mgt_short_conv_cached(mgt_device *d, void *bcx, void *w, void *bias_or_null, void *cache, void *table, void *sequence,
                                         void *pos);
// The gated delta rule of mgrpo/delta_rule.h. mgt_pieces divides rows into pieces: `first` describes them in host memory, for any number of
// calls, and `second` on the device of cu.
typedef struct {
  int64_t key_heads, value_heads, key_dim, value_dim;
  void *a_log, *dt_bias;
} mgt_delta_rule;
MGT_API mgt_pair mgt_pieces(mgt_device *d, void *cu, void *follows_or_null);
MGT_API mgt_tensor mgt_delta_rule_packed(mgt_device *d, void *x, void *ba, mgt_delta_rule rule, void *pieces, void *pieces_on_device);
MGT_API mgt_tensor mgt_delta_rule_states(mgt_device *d, void *x, void *ba, mgt_delta_rule rule, void *states, void *slot, void *pos);
MGT_API mgt_tensor mgt_route(mgt_device *d, void *logits, void *given_or_null, void *chosen, void *differs_or_null, void *prob_or_null,
                             int normalise, double balance);
// The sigmoids of the chosen experts' logits, divided by their sum + 1e-6 if `normalise` is set, times scale: float32 [T, k].
MGT_API mgt_tensor mgt_sigmoid_weights(mgt_device *d, void *logits, void *chosen, int normalise, double scale);
// Up to this number of tokens times experts of each, mgt_experts on a GPU reads weights once for each row. It then does not wait for
// counts, if no gradient is recorded.
enum { MGT_FEW_EXPERT_ROWS = 512 };
// Whether mgt_experts never waits for counts, with any number of rows: gate_up [E 2 ffn, hidden] and down [E hidden, ffn] of a dtype.
MGT_API int mgt_experts_together(mgt_device *d, int dtype, int64_t hidden, int64_t ffn);
// Biases of both products, or none. gates is of enum mgrpo_gates.
MGT_API mgt_tensor mgt_experts(mgt_device *d, void *x, void *chosen, void *weight, void *gate_up, void *down, void *gate_up_bias_or_null,
                               void *down_bias_or_null, int gates);
// The steps of mgt_experts before and after the experts, without gradients: the order of mgrpo/moe.h, x's rows in it, and their sums.
MGT_API char *mgt_by_expert_(mgt_device *d, void *chosen, void *first, void *source, void *place);
MGT_API mgt_tensor mgt_expert_rows(mgt_device *d, void *x, void *source);
MGT_API mgt_tensor mgt_expert_sums(mgt_device *d, void *rows, void *place, int64_t tokens, void *weight_or_null);
// A head's w is a tensor [V, D] if type is MGT_NOT_QUANTISED, else blocks of that type.
enum { MGT_NOT_QUANTISED = -1 };
MGT_API mgt_pair mgt_head_log_prob(mgt_device *d, void *h, void *w, int32_t type, void *targets, double tau, int64_t chunk, double cap);
// dL/dw is added to dw_or_null, float32 [V, D], or else to w's gradient. refusal is filled if status is MGRPO_REFUSED.
MGT_API mgt_policy_loss mgt_linear_policy_loss(mgt_device *d, void *h, void *w, int32_t type, void *dw_or_null, void *targets, double tau,
                                               int64_t chunk, double cap, const mgrpo_loss_batch *batch, const mgrpo_loss_config *config,
                                               mgrpo_loss_sums *sums, mgrpo_loss_error *refusal);

// Groups of processes (group.cpp). After a failed call the group cannot be used: close it and open another under another name.
typedef struct mgt_group mgt_group;
typedef struct mgt_rendezvous mgt_rendezvous;
enum { MGT_GROUP_MISUSED, MGT_GROUP_LOST, MGT_GROUP_TIMED_OUT, MGT_GROUP_ABORTED };
typedef struct {
  mgt_group *group;  // only from mgt_group_open
  char *error;
  int32_t why;   // of MGT_GROUP_*, if error is not NULL
  int32_t peer;  // the lost or late rank, -1 if unknown
} mgt_group_result;
// Serves a rendezvous on `listening`, a TCP socket at host:port. The call duplicates the socket.
MGT_API mgt_pointer mgt_rendezvous_serve(const char *host, int port, int listening);
MGT_API void mgt_rendezvous_close(mgt_rendezvous *r);
// Waits join_ms for ranks 0 to size-1 of the group called name; each later call waits timeout_ms for them. bind is the address of
// this machine for the others.
MGT_API mgt_group_result mgt_group_open(const char *host, int port, const char *name, const char *bind, int rank, int size, int64_t join_ms,
                                        int64_t timeout_ms);
// Tensors are contiguous, of one shape and dtype on every rank. Rank r's share of n elements: mgt_group_share.
MGT_API void mgt_group_share(int64_t n, int rank, int size, int64_t *from, int64_t *to);
// Sums this rank's share of all t from rank 0 to the last, in place.
MGT_API mgt_group_result mgt_group_reduce_scatter_(mgt_device *d, mgt_group *g, void *t);
MGT_API mgt_group_result mgt_group_accumulate_(mgt_device *d, mgt_group *g, void *sum, void *t);  // adds to sum, of the share's size
MGT_API mgt_group_result mgt_group_all_gather_(mgt_device *d, mgt_group *g, void *t);             // every share becomes its rank's
// The same in two calls. Other calls in between must not use t. Several may be in progress, and are finished in the order of their start.
MGT_API mgt_group_result mgt_group_start_all_gather(mgt_device *d, mgt_group *g, void *t);
MGT_API mgt_group_result mgt_group_finish_all_gather(mgt_device *d, mgt_group *g, void *t);
MGT_API mgt_group_result mgt_group_send_(mgt_device *d, mgt_group *g, void *t, int from, int to);  // to's t becomes from's
// Sends send_counts[r] rows of out to rank r and receives receive_counts[r] rows of in from it, in the order of ranks. Both are contiguous,
// with rows of one size and dtype on every rank. Numbers of rows may differ.
MGT_API mgt_group_result mgt_group_all_to_all_(mgt_device *d, mgt_group *g, void *in, void *out, const int64_t *receive_counts,
                                               const int64_t *send_counts);
// all[size · bytes] = every rank's mine[bytes].
MGT_API mgt_group_result mgt_group_exchange(mgt_group *g, const void *mine, int64_t bytes, void *all);
// The transport of tensors on GPUs, such as "NCCL 2.28.9", or "Gloo, ..." with the reason; empty before the first call with such a tensor.
// mgt_free releases it.
MGT_API char *mgt_group_transport(mgt_group *g);
MGT_API void mgt_group_abort(mgt_group *g);  // from any thread: the call in progress and every later one fail
MGT_API void mgt_group_close(mgt_group *g);  // no call may be in progress

#ifdef __cplusplus
}
#endif
