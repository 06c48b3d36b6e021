// 16 lanes with AVX-512 and its integer dot products (VNNI).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels.hpp"

// GCC's own intrinsics pass undefined vectors on purpose, and GCC 12 warns of them (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace slipstream::avx512 {
namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 8;
constexpr int kScoreVectors = 4;  // key vectors that up to four queries share
constexpr int kWideQueries = 8;   // queries that share two key vectors
constexpr int kMixQueries = 4;

using Floats = __m512;
using Ints = __m512i;
using Codes = __m512i;  // four unsigned bytes for each lane

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats set(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline Floats round(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_two(Floats n) { return _mm512_scalef_ps(set(1.0f), n); }
inline Floats swap_pairs(Floats a) { return _mm512_permute_ps(a, 0xb1); }
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }
inline Floats load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats load_bfloat(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline void store_half(uint16_t* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
// Stores whole numbers from -128 to 127 as bytes and returns their sum.
inline int32_t store_codes(int8_t* p, Floats a) {
    const __m512i whole = _mm512_cvtps_epi32(a);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(whole));
    return _mm512_reduce_add_epi32(whole);
}
// Lanes 0..7 plus 8..15, then in halves again: one fixed order.
inline float total(Floats a) { return _mm512_reduce_add_ps(a); }

inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Codes low_nibbles(Codes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Codes high_nibbles(Codes a) { return low_nibbles(_mm512_srli_epi16(a, 4)); }
inline void prefetch_far(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Sums of products of unsigned codes with the four signed bytes at x, over a group. `start` is what the sum begins
// with, so that an offset of the codes costs nothing.
struct NibbleSum {
    Ints sum;
    explicit NibbleSum(int32_t start) : sum(_mm512_set1_epi32(start)) {}
    void add(Codes codes, const int8_t* x) {
        sum = _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x)));
    }
    Ints finish() const { return sum; }
};

// The same for codes of eight bits that are 128 too high; `start` is -8 * sum of the bytes.
struct ByteSum : NibbleSum {
    // Shifted as a vector: from a scalar register the broadcast would take a unit that the products need.
    explicit ByteSum(int32_t start) : NibbleSum(start) { sum = _mm512_slli_epi32(sum, 4); }
};

}  // namespace
}  // namespace slipstream::avx512
