// A device "cuda:0" for a LibTorch without CUDA. Its tensors are in the memory of the emulated GPU (kernels/test/emulator),
// which is the host's, and LibTorch's own operations on them run on the CPU. So code that asks whether a tensor is on a GPU
// takes the GPU's way. Operations refuse what a GPU refuses: tensors on other devices, and waits while work is recorded.
#include "gpu.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace emulated {
namespace {

std::atomic<int64_t> live{0}, most{0};

// Bytes are kept before each block of memory, for the count.
constexpr size_t kHead = 256;

void free_block(void *p) {
  std::lock_guard<std::recursive_mutex> lock(one_at_a_time());
  auto *begin = static_cast<char *>(p) - kHead;
  emulator::enqueue([begin] {});
  live -= *reinterpret_cast<int64_t *>(begin);
  emulator::release(begin);
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time());
    const c10::Device gpu(c10::kCUDA, 0);
    if (n == 0) return {nullptr, gpu};
    auto *begin = static_cast<char *>(emulator::allocate(n + kHead));
    TORCH_CHECK(begin, "the emulated GPU is out of memory");
    *reinterpret_cast<int64_t *>(begin) = int64_t(n);
    const int64_t now = live += int64_t(n);
    most = std::max(most.load(), now);
    return {begin + kHead, begin + kHead, &free_block, gpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void *to, const void *from, size_t n) const override {
    emulator::finish();
    std::memcpy(to, from, n);
  }
};
Memory memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::kCUDA;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device d) const override { TORCH_CHECK(d.index() <= 0, "the emulated GPU is cuda:0, not ", d); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return getStream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return getStream(s.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  bool isPinnedPtr(const void *) const override { return false; }
  void deviceSynchronize(c10::DeviceIndex) const override { emulator::finish(); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

const bool allocates = [] {
  c10::SetAllocator(c10::kCUDA, &memory);
  return true;
}();

const c10::DispatchKeySet kGPU(c10::DispatchKey::CUDA);

at::Tensor made(at::Tensor t) {
  if (Recording *r = recording()) r->own(t);
  return t;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return made(at::Tensor(at::detail::empty_generic(size, &memory, kGPU, dtype.value_or(at::kFloat), format)));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return made(at::Tensor(at::detail::empty_strided_generic(size, stride, &memory, kGPU, dtype.value_or(at::kFloat))));
}

// A tensor over the same elements as another, in a storage that may be another's view of the same memory.
at::Tensor over(const at::Tensor &like, c10::Storage storage, c10::DispatchKeySet keys) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto *impl = t.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  return t;
}

// One operation on the CPU: its tensors there, by the tensors of the GPU.
class Call {
 public:
  explicit Call(const c10::FunctionSchema &schema) : schema_(schema) {}

  c10::IValue to_cpu(const c10::IValue &v) {
    if (v.isTensor()) return v.toTensor().defined() ? c10::IValue(to_cpu(v.toTensor())) : v;
    if (v.isDevice()) return c10::Device(c10::kCPU);
    if (v.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor &t : v.toTensorVector()) out.push_back(to_cpu(t));
      return out;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const auto &t : v.toOptionalTensorVector()) out.push_back(t && t->defined() ? std::optional(to_cpu(*t)) : t);
      return out;
    }
    return v;
  }

  // The operation's result is one of its arguments, a view of one, or new.
  c10::IValue to_gpu(const c10::IValue &v) {
    if (v.isTensor()) return v.toTensor().defined() ? c10::IValue(to_gpu(v.toTensor())) : v;
    if (v.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor &t : v.toTensorVector()) out.push_back(to_gpu(t));
      return out;
    }
    return v;
  }

  // Arguments that the operation has resized, such as empty ones that it fills.
  void resize() const {
    for (const auto &[cpu, gpu] : tensors_) {
      auto *from = cpu.storage().unsafeGetStorageImpl(), *to = gpu.storage().unsafeGetStorageImpl();
      if (from->nbytes() != to->nbytes() || from->data() != to->data()) {
        to->set_data_ptr_noswap(memory.allocate(from->nbytes()));
        to->set_nbytes(from->nbytes());
        if (from->nbytes() > 0) std::memcpy(to->mutable_data(), from->data(), from->nbytes());
      }
      if (cpu.sizes() != gpu.sizes() || cpu.strides() != gpu.strides())
        gpu.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
    }
  }

 private:
  at::Tensor to_cpu(const at::Tensor &t) {
    if (!t.is_cuda()) {
      static const std::set<std::string> mixed{"aten::copy_",      "aten::_copy_from",       "aten::index.Tensor",
                                               "aten::index_put_", "aten::_index_put_impl_", "aten::where.self"};
      TORCH_CHECK(t.dim() == 0 || mixed.count(schema_.name() + (schema_.overload_name().empty() ? "" : "." + schema_.overload_name())),
                  schema_.name(), ": a tensor on ", t.device(), " beside tensors on cuda:0: all must be on one device");
      return t;
    }
    auto *storage = t.storage().unsafeGetStorageImpl();
    auto [at, is_new] = storages_.try_emplace(storage);
    if (is_new) {
      auto *data = storage->mutable_data();
      at->second = c10::Storage(c10::Storage::use_byte_size_t(), storage->nbytes(), c10::DataPtr(data, c10::Device(c10::kCPU)),
                                c10::GetAllocator(c10::kCPU), true);
      owners_.emplace(at->second.unsafeGetStorageImpl(), t.storage());
    }
    auto cpu = over(t, at->second, c10::DispatchKeySet(c10::DispatchKey::CPU));
    tensors_.emplace_back(cpu, t);
    return cpu;
  }

  at::Tensor to_gpu(const at::Tensor &t) {
    for (const auto &[cpu, gpu] : tensors_)
      if (cpu.is_same(t)) return gpu;
    if (!t.is_cpu()) return t;
    auto owner = owners_.find(t.storage().unsafeGetStorageImpl());
    if (owner != owners_.end()) return over(t, owner->second, kGPU);
    auto gpu = at::Tensor(at::detail::empty_strided_generic(t.sizes(), t.strides(), &memory, kGPU, t.scalar_type()));
    if (gpu.nbytes() > 0)
      std::memcpy(gpu.storage().mutable_data(), t.storage().data(), std::min(gpu.storage().nbytes(), t.storage().nbytes()));
    return gpu;
  }

  const c10::FunctionSchema &schema_;
  std::map<const c10::StorageImpl *, c10::Storage> storages_;  // the CPU's, by the GPU's
  std::map<const c10::StorageImpl *, c10::Storage> owners_;    // and the other way round
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

// Runs an operation on arguments of the GPU, all work before which is done.
std::vector<c10::IValue> run(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments) {
  Call call(op.schema());
  torch::jit::Stack stack;
  for (const auto &v : arguments) stack.push_back(call.to_cpu(v));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(stack);
  call.resize();
  for (auto &v : stack) v = call.to_gpu(v);
  return {stack.begin(), stack.end()};
}

bool writes(const c10::FunctionSchema &schema) {
  for (const auto &a : schema.arguments())
    if (a.alias_info() && a.alias_info()->isWrite()) return true;
  return false;
}

// Whether the host learns what a tensor on the GPU contains.
bool waits(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments) {
  static const std::set<std::string> reads{"aten::_local_scalar_dense", "aten::nonzero",       "aten::equal",
                                           "aten::is_nonzero",          "aten::masked_select", "aten::_unique2",
                                           "aten::repeat_interleave"};
  if (reads.count(op.schema().name())) return true;
  bool cpu = false;
  for (const auto &v : arguments) cpu |= v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu() && v.toTensor().dim() > 0;
  return cpu && op.schema().name() == "aten::copy_";
}

// A view launches nothing. A copy from the host's memory waits for it, as LibTorch makes it.
void count(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments) {
  auto &counts = emulator::counts();
  const auto &returns = op.schema().returns();
  const bool view = !returns.empty() && returns[0].alias_info() && !returns[0].alias_info()->isWrite();
  const bool uploads = op.schema().name() == "aten::copy_" && !arguments[1].toTensor().is_cuda();
  counts.waits += waits(op, arguments);
  counts.uploads += uploads;
  counts.launches += !view && !waits(op, arguments);
}

// Operations without a function of their own above.
void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  std::lock_guard<std::recursive_mutex> lock(one_at_a_time());
  const size_t n = op.schema().arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - int64_t(n), stack->end()), results;
  if (Recording *r = recording()) {
    TORCH_CHECK(!waits(op, arguments), op.schema().name(),
                " waits for the GPU, or copies from or to the host's memory, while work is recorded");
    results = r->add(op, arguments, writes(op.schema()), run);
  } else {
    count(op, arguments);
    emulator::finish();
    results = run(op, arguments);
  }
  torch::jit::drop(*stack, n);
  for (auto &v : results) stack->push_back(std::move(v));
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// LibTorch's fused attentions are kernels of their own; this one is of operations that the CPU has.
int64_t attention_of_operations(const at::Tensor &, const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &, double, bool,
                                std::optional<double>, bool) {
  return int64_t(sdp::SDPBackend::math);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_fused_sdp_choice", TORCH_FN(attention_of_operations));
  // These have one function for all devices, which asks for a part of the GPU's.
  for (const char *name : {"copy_"}) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

std::recursive_mutex &one_at_a_time() {
  static std::recursive_mutex mutex;
  return mutex;
}

int64_t live_bytes() { return live; }
int64_t most_bytes() { return most; }
void reset_most_bytes() { most = live.load(); }

namespace {
Recording *now_recorded = nullptr;
}

Recording *recording() { return now_recorded; }

void Recording::begin() {
  now_recorded = this;
  emulator::record(&work_);
}

void Recording::end() {
  now_recorded = nullptr;
  emulator::record(nullptr);
}

namespace {
bool views(const at::Tensor &t, const std::vector<c10::IValue> &arguments) {
  for (const auto &v : arguments)
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().storage().is_alias_of(t.storage())) return true;
  return false;
}
}  // namespace

// Operations that write are done by a replay alone, as on a GPU. Of the others the shapes of results have to be known.
std::vector<c10::IValue> Recording::add(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments, bool writes,
                                        const Run &run) {
  std::vector<c10::IValue> results;
  std::vector<Held> held;
  for (const auto &v : arguments) held.push_back(hold(v));
  if (writes) {
    for (size_t i = 0; i < op.schema().arguments().size(); i++) {
      const auto *alias = op.schema().arguments()[i].alias_info();
      if (alias && alias->isWrite() && results.size() < op.schema().returns().size()) results.push_back(arguments[i]);
    }
  } else {
    emulator::record(nullptr);
    results = run(op, arguments);
    emulator::record(&work_);
  }
  for (const auto &v : results)
    if (v.isTensor() && v.toTensor().defined() && !writes && !views(v.toTensor(), arguments)) own(v.toTensor());
  work_.push_back([op, held = std::move(held), results, writes, run] {
    std::vector<c10::IValue> arguments;
    for (const auto &h : held) arguments.push_back(h.value(op.schema().name()));
    auto now = run(op, arguments);
    if (writes) return;
    for (size_t i = 0; i < now.size(); i++) {
      if (!now[i].isTensor() || !now[i].toTensor().defined()) continue;
      const auto &from = now[i].toTensor(), &to = results[i].toTensor();
      if (from.storage().data() != to.storage().data())
        std::memcpy(to.storage().mutable_data(), from.storage().data(), std::min(from.storage().nbytes(), to.storage().nbytes()));
    }
  });
  return results;
}

// A tensor that the recorded work made stays as long as the recording. Any other must live until each replay.
Recording::Held Recording::hold(const c10::IValue &v) {
  if (!v.isTensor() || !v.toTensor().defined() || !v.toTensor().is_cuda() || own_.count(v.toTensor().storage().unsafeGetStorageImpl()))
    return {v, {}, {}};
  const auto &t = v.toTensor();
  auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(t.storage().unsafeGetStorageImpl());
  at::Tensor shape = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, t.device()), nullptr, false),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), t.dtype());
  shape.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset());
  shape.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  return {{}, shape, Weak(storage)};
}

c10::IValue Recording::Held::value(const std::string &op) const {
  if (!shape.defined()) return always;
  auto storage = weak->lock();
  TORCH_CHECK(storage, op, ": recorded work reads a tensor that was freed before the replay");
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), shape.dtype());
  t.unsafeGetTensorImpl()->set_storage_offset(shape.storage_offset());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
  return t;
}

void Recording::replay() {
  emulator::finish();
  for (const auto &work : work_) work();
}

}  // namespace emulated
