// 16 lanes with AVX-512; integer dot products by VNNI where SLIPSTREAM_AVX512VNNI is defined.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels.hpp"

// GCC's own intrinsics pass undefined vectors on purpose, and GCC 12 warns of them (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#ifdef SLIPSTREAM_AVX512VNNI
#define SLIPSTREAM_NAMESPACE avx512vnni
#else
#define SLIPSTREAM_NAMESPACE avx512
#endif

namespace slipstream::SLIPSTREAM_NAMESPACE {
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

// kLanes bytes as whole numbers.
inline Ints widen(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints widen(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <int FROM>
inline Ints four_bits(Ints a) {
    return _mm512_and_si512(_mm512_srli_epi32(a, FROM), _mm512_set1_epi32(15));
}

inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
// `COUNT` bits of each byte, from bit `FROM` to bit `TO`.
template <int FROM, int COUNT, int TO>
inline Codes bits(Codes a) {
    if constexpr (FROM > TO) a = _mm512_srli_epi16(a, FROM - TO);
    if constexpr (FROM < TO) a = _mm512_slli_epi16(a, TO - FROM);
    return _mm512_and_si512(a, _mm512_set1_epi8(char(((1 << COUNT) - 1) << TO)));
}
inline Codes merge(Codes a, Codes b) { return _mm512_or_si512(a, b); }
// The bytes of `table` [16] at the places `a`.
inline Codes look_up(const uint8_t* table, Codes a) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), a);
}
inline void prefetch_far(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
inline Codes four_bytes(const int8_t* x) { return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x)); }

// Sums of products of unsigned codes of `BITS` bits with signed bytes: four at x with the codes `first`, and the four
// behind them with `second`. They begin with start * 2^SHIFT, so that an offset of the codes costs next to nothing.
#ifdef SLIPSTREAM_AVX512VNNI

template <int BITS, int SHIFT>
class CodeSum {
   public:
    // Shifted as a vector: from a scalar register the broadcast would take a unit that the products need.
    explicit CodeSum(int32_t start) : sum_(_mm512_slli_epi32(_mm512_set1_epi32(start), SHIFT)) {}
    void add(Codes first, Codes second, const int8_t* x) {
        sum_ = _mm512_dpbusd_epi32(sum_, first, four_bytes(x));
        sum_ = _mm512_dpbusd_epi32(sum_, second, four_bytes(x + 4));
    }
    Ints finish() const { return sum_; }

   private:
    Ints sum_;
};

#else

// Pairs of products are added in 16 bits as far as they fit: with codes of four bits all 16 of a group, 16 * 15 * 127 =
// 30480; with six bits four, 4 * 63 * 127 = 32004. Codes of eight bits are signed ones that are 128 too high: split
// into magnitude and sign, two fit, 2 * 128 * 127 = 32512, and the offset is gone.
template <int BITS, int SHIFT>
class CodeSum {
   public:
    explicit CodeSum(int32_t start) : start_(start) {}
    void add(Codes first, Codes second, const int8_t* x) {
        if constexpr (BITS == 8) {
            sum_ = _mm512_add_epi32(sum_, widened(signed_pairs(first, four_bytes(x))));
            sum_ = _mm512_add_epi32(sum_, widened(signed_pairs(second, four_bytes(x + 4))));
        } else {
            const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(first, four_bytes(x)),
                                                   _mm512_maddubs_epi16(second, four_bytes(x + 4)));
            sum_ = BITS <= 4 ? _mm512_add_epi16(sum_, pairs) : _mm512_add_epi32(sum_, widened(pairs));
        }
    }
    Ints finish() const {
        if constexpr (BITS == 8) return sum_;
        return _mm512_add_epi32(BITS <= 4 ? widened(sum_) : sum_, _mm512_slli_epi32(_mm512_set1_epi32(start_), SHIFT));
    }

   private:
    static Ints widened(__m512i pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }
    static __m512i signed_pairs(Codes codes, __m512i x) {
        const __m512i signed_codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(signed_codes), _mm512_setzero_si512(), x);
        return _mm512_maddubs_epi16(_mm512_abs_epi8(signed_codes), signed_x);
    }

    Ints sum_ = _mm512_setzero_si512();
    int32_t start_;
};

#endif

}  // namespace
}  // namespace slipstream::SLIPSTREAM_NAMESPACE
