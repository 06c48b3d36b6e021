// 8 lanes with AVX2, FMA and F16C; integer dot products by AVX-VNNI where SLIPSTREAM_AVXVNNI is defined.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels.hpp"

#ifdef SLIPSTREAM_AVXVNNI
#define SLIPSTREAM_NAMESPACE avx2vnni
#else
#define SLIPSTREAM_NAMESPACE avx2
#endif

namespace slipstream::SLIPSTREAM_NAMESPACE {
namespace {

constexpr int kLanes = 8;
constexpr int kTileRows = 4;
constexpr int kScoreVectors = 2;
constexpr int kWideQueries = 4;
constexpr int kMixQueries = 2;

using Floats = __m256;
using Ints = __m256i;
using Codes = __m256i;

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats set(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm256_andnot_ps(set(-0.0f), a); }
inline Floats round(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_two(Floats n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
inline Floats swap_pairs(Floats a) { return _mm256_permute_ps(a, 0xb1); }
inline Floats load_half(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_bfloat(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline void store_half(uint16_t* p, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline float largest(Floats a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline float total(Floats a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline int32_t store_codes(int8_t* p, Floats a) {
    const __m256i whole = _mm256_cvtps_epi32(a);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
    words = _mm_madd_epi16(words, _mm_set1_epi16(1));
    words = _mm_add_epi32(words, _mm_shuffle_epi32(words, 0x4e));
    return _mm_cvtsi128_si32(words) + _mm_extract_epi32(words, 1);
}

// kLanes bytes as whole numbers.
inline Ints widen(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Ints widen(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
template <int FROM>
inline Ints four_bits(Ints a) {
    return _mm256_and_si256(_mm256_srli_epi32(a, FROM), _mm256_set1_epi32(15));
}

inline Codes load_codes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
// `COUNT` bits of each byte, from bit `FROM` to bit `TO`.
template <int FROM, int COUNT, int TO>
inline Codes bits(Codes a) {
    if constexpr (FROM > TO) a = _mm256_srli_epi16(a, FROM - TO);
    if constexpr (FROM < TO) a = _mm256_slli_epi16(a, TO - FROM);
    return _mm256_and_si256(a, _mm256_set1_epi8(char(((1 << COUNT) - 1) << TO)));
}
inline Codes merge(Codes a, Codes b) { return _mm256_or_si256(a, b); }
// The bytes of `table` [16] at the places `a`.
inline Codes look_up(const uint8_t* table, Codes a) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))),
                               a);
}
inline void prefetch_far(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
inline Codes four_bytes(const int8_t* x) { return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(x)); }

// Sums of products of unsigned codes of `BITS` bits with signed bytes: four at x with the codes `first`, and the four
// behind them with `second`. They begin with start * 2^SHIFT, so that an offset of the codes costs next to nothing.
#ifdef SLIPSTREAM_AVXVNNI

template <int BITS, int SHIFT>
class CodeSum {
   public:
    explicit CodeSum(int32_t start) : sum_(_mm256_slli_epi32(_mm256_set1_epi32(start), SHIFT)) {}
    void add(Codes first, Codes second, const int8_t* x) {
        sum_ = _mm256_dpbusd_avx_epi32(sum_, first, four_bytes(x));
        sum_ = _mm256_dpbusd_avx_epi32(sum_, second, four_bytes(x + 4));
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
            sum_ = _mm256_add_epi32(sum_, widened(signed_pairs(first, four_bytes(x))));
            sum_ = _mm256_add_epi32(sum_, widened(signed_pairs(second, four_bytes(x + 4))));
        } else {
            const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(first, four_bytes(x)),
                                                   _mm256_maddubs_epi16(second, four_bytes(x + 4)));
            sum_ = BITS <= 4 ? _mm256_add_epi16(sum_, pairs) : _mm256_add_epi32(sum_, widened(pairs));
        }
    }
    Ints finish() const {
        if constexpr (BITS == 8) return sum_;
        return _mm256_add_epi32(BITS <= 4 ? widened(sum_) : sum_, _mm256_slli_epi32(_mm256_set1_epi32(start_), SHIFT));
    }

   private:
    static Ints widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
    static __m256i signed_pairs(Codes codes, __m256i x) {
        const __m256i signed_codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        return _mm256_maddubs_epi16(_mm256_abs_epi8(signed_codes), _mm256_sign_epi8(x, signed_codes));
    }

    Ints sum_ = _mm256_setzero_si256();
    int32_t start_;
};

#endif

}  // namespace
}  // namespace slipstream::SLIPSTREAM_NAMESPACE
