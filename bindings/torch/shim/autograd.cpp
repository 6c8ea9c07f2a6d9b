// Gradients: leaves, accumulation, the backward pass.
#include <torch/csrc/autograd/autograd.h>

#include "guard.h"

char *mgt_require_grad_(mgt_device *d, void *t, int on) {
  return run(d, [&] { ref(t).set_requires_grad(on); });
}

mgt_tensor mgt_grad(mgt_device *d, void *t) {
  mgt_tensor r{};
  r.error = run(d, [&] {
    if (const auto &g = ref(t).grad(); g.defined()) own(r, g);
  });
  return r;
}

char *mgt_set_grad_(mgt_device *d, void *t, void *grad_or_null) {
  return run(d, [&] {
    auto &x = ref(t);
    if (!grad_or_null) {
      x.mutable_grad().reset();
      return;
    }
    const auto &g = ref(grad_or_null);
    TORCH_CHECK(g.sizes() == x.sizes() && g.scalar_type() == x.scalar_type(), "the gradient must have the tensor's shape and dtype");
    TORCH_CHECK(!g.requires_grad(), "the gradient must not itself require a gradient");
    x.mutable_grad() = g;
  });
}

int mgt_has_history(void *t) { return ref(t).requires_grad(); }

char *mgt_set_data_(mgt_device *d, void *t, void *data) {
  return run(d, [&] {
    auto &x = ref(t);
    const auto &values = ref(data);
    TORCH_CHECK(values.sizes() == x.sizes() && values.scalar_type() == x.scalar_type() && values.device() == x.device(),
                "the data must have the tensor's shape, dtype and device");
    x.set_data(values.detach());
  });
}

char *mgt_backward(mgt_device *d, void **outputs, void **grads, int64_t n) {
  return run(d, [&] {
    std::vector<at::Tensor> out, grad;
    for (int64_t i = 0; i < n; i++) {
      out.push_back(ref(outputs[i]));
      grad.push_back(or_none(grads[i]));
      TORCH_CHECK(out[i].requires_grad(), "output ", i,
                  " has no gradient history: was it made with grad mode on, from a leaf that requires grad?");
    }
    torch::autograd::backward(out, grad);
  });
}
