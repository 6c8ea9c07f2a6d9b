// The kernel of mgrpo_group_advantage_cuda (mgrpo/advantage.h) for float64 rewards, as a module that a program loads through the CUDA
// driver. cuda/kernel.go launches it. gorgonia/cu passes parameters of at most 8 bytes, so the structs of the kernel are spread out here.
#include "advantage.cuh"

// A block has kThreads threads and computes kThreads / kSmallGroupLanes groups at a time. *first must be -1 before the launch.
extern "C" __global__ __launch_bounds__(mgrpo::cuda::kThreads) void mgrpo_group_advantage(const double *rewards, const double *weights,
                                                                                          const int64_t *offsets, int64_t groups,
                                                                                          double *advantages, mgrpo_group_stats *stats,
                                                                                          int64_t *refusals, int64_t *first, int32_t std,
                                                                                          int32_t baseline, double eps, double sigma_min) {
  mgrpo::cuda::normalise_all(mgrpo_convention{std, baseline, eps, sigma_min},
                             mgrpo::cuda::Groups<double>{rewards, weights, offsets, groups, advantages, stats, refusals, first});
}
