package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// sharedKV holds the keys and values that later layers of a training pass share, by layer.
type sharedKV map[int]keysValues

type keysValues struct{ k, v *torch.Tensor }

// hoistSharedKV moves the shared keys and values of layer i out of the innermost scope.
func hoistSharedKV(s *torch.Scope, pass Pass, i int) {
	if packed, ok := pass.Attention.(packedAttention); ok {
		if kv, kept := packed.shared[i]; kept {
			s.Hoist(kv.k)
			s.Hoist(kv.v)
		}
	}
}

// asLeaves replaces the shared tensors with leaves, and returns the leaves. From layer `lowest` on, they accumulate the gradients of later
// layers.
func (k sharedKV) asLeaves(lowest int) sharedKV {
	leaves := sharedKV{}
	for i, kv := range k {
		leaf := keysValues{kv.k.Detach(), kv.v.Detach()}
		leaf.k.RequireGrad(i >= lowest)
		leaf.v.RequireGrad(i >= lowest)
		k[i], leaves[i] = leaf, leaf
	}
	return leaves
}

// extend adds the keys and values that layer i has computed again to a loss's outputs, and the gradients of leaves to its grads.
func (k sharedKV) extend(i int, leaves sharedKV, outputs, grads []*torch.Tensor) ([]*torch.Tensor, []*torch.Tensor) {
	leaf, kept := leaves[i]
	if !kept {
		return outputs, grads
	}
	return append(outputs, k[i].k, k[i].v), append(grads, leaf.k.Grad(), leaf.v.Grad())
}
