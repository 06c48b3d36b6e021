#include "simd_avx512.hpp"

#include <type_traits>
#include <utility>

#define SLIPSTREAM_NAME "avx512vnni"
namespace slipstream::avx512 {
#include "kernels.inl"
}
