#include "simd_neon.hpp"

#include <bit>
#include <utility>

#define SLIPSTREAM_NAME "neon"
namespace slipstream::neon {
#include "kernels.inl"
}
