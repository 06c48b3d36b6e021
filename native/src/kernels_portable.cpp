#include "simd_portable.hpp"

#include <type_traits>
#include <utility>

#define SLIPSTREAM_NAME "portable"
namespace slipstream::portable {
#include "kernels.inl"
}
