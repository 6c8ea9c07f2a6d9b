// Infinity and NaN, for the CPU and the GPU.
#pragma once

namespace mgrpo {

constexpr double kInf = __builtin_huge_val();
constexpr double kNaN = __builtin_nan("");

}  // namespace mgrpo
