#define SLIPSTREAM_AVX512VNNI
#include "simd_avx512.hpp"

#include <bit>
#include <utility>

#define SLIPSTREAM_NAME "avx512vnni"
namespace slipstream::avx512vnni {
#include "kernels.inl"
}
