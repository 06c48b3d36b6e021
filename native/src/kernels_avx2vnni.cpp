#define SLIPSTREAM_AVXVNNI
#include "simd_avx2.hpp"

#include <bit>
#include <utility>

#define SLIPSTREAM_NAME "avx2vnni"
namespace slipstream::avx2vnni {
#include "kernels.inl"
}
