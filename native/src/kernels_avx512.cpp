#include "simd_avx512.hpp"

#include <bit>
#include <utility>

#define SLIPSTREAM_NAME "avx512"
namespace slipstream::avx512 {
#include "kernels.inl"
}
