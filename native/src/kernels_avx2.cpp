#include "simd_avx2.hpp"

#include <bit>
#include <utility>

#define SLIPSTREAM_NAME "avx2"
namespace slipstream::avx2 {
#include "kernels.inl"
}
