#include "simd_portable.hpp"

#include <bit>
#include <utility>

#define SLIPSTREAM_NAME "portable"
namespace slipstream::portable {
#include "kernels.inl"
}
