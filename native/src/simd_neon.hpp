// 4 lanes with Arm's NEON and its integer dot products (Armv8.2 DotProd).
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels.hpp"

namespace slipstream::neon {
namespace {

constexpr int kLanes = 4;
constexpr int kTileRows = 8;
constexpr int kScoreVectors = 4;
constexpr int kWideQueries = 4;
constexpr int kMixQueries = 4;

using Floats = float32x4_t;
using Ints = int32x4_t;
using Codes = uint8x16_t;  // four unsigned bytes for each lane

inline Floats zero() { return vdupq_n_f32(0.0f); }
inline Floats set(float x) { return vdupq_n_f32(x); }
inline Floats load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, Floats x) { vst1q_f32(p, x); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats div(Floats a, Floats b) { return vdivq_f32(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
// Of a number and a NaN both give the number.
inline Floats max(Floats a, Floats b) { return vmaxnmq_f32(a, b); }
inline Floats min(Floats a, Floats b) { return vminnmq_f32(a, b); }
inline Floats abs(Floats a) { return vabsq_f32(a); }
inline Floats round(Floats a) { return vrndnq_f32(a); }
inline Floats power_of_two(Floats n) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
}
inline Floats swap_pairs(Floats a) { return vrev64q_f32(a); }
inline Floats load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline Floats load_bfloat(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline void store_half(uint16_t* p, Floats a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
inline Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
inline float largest(Floats a) { return vmaxnmvq_f32(a); }
inline float total(Floats a) { return vaddvq_f32(a); }
// Stores whole numbers from -128 to 127 as bytes and returns their sum.
inline int32_t store_codes(int8_t* p, Floats a) {
    const int32x4_t whole = vcvtnq_s32_f32(a);
    const int16x4_t words = vmovn_s32(whole);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    std::memcpy(p, &bytes, 4);
    return vaddvq_s32(whole);
}

// kLanes bytes as whole numbers.
inline Ints widen(const uint8_t* p) {
    uint8x8_t bytes = vdup_n_u8(0);
    std::memcpy(&bytes, p, 4);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
inline Ints widen(const int8_t* p) {
    int8x8_t bytes = vdup_n_s8(0);
    std::memcpy(&bytes, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
template <int FROM>
inline Ints four_bits(Ints a) {
    if constexpr (FROM > 0) a = vshrq_n_s32(a, FROM);
    return vandq_s32(a, vdupq_n_s32(15));
}

inline Codes load_codes(const uint8_t* p) { return vld1q_u8(p); }
// `COUNT` bits of each byte, from bit `FROM` to bit `TO`.
template <int FROM, int COUNT, int TO>
inline Codes bits(Codes a) {
    if constexpr (FROM > TO) a = vshrq_n_u8(a, FROM - TO);
    if constexpr (FROM < TO) a = vshlq_n_u8(a, TO - FROM);
    return vandq_u8(a, vdupq_n_u8(((1 << COUNT) - 1) << TO));
}
inline Codes merge(Codes a, Codes b) { return vorrq_u8(a, b); }
// The bytes of `table` [16] at the places `a`.
inline Codes look_up(const uint8_t* table, Codes a) { return vqtbl1q_u8(vld1q_u8(table), a); }
inline void prefetch_far(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

// Sums of products of unsigned codes of `BITS` bits with signed bytes: four at x with the codes `first`, and the four
// behind them with `second`. They begin with start * 2^SHIFT. The products are of signed bytes, which codes of six bits
// are as they stand; those of eight bits are 128 too high, and without that they need no start.
template <int BITS, int SHIFT>
class CodeSum {
   public:
    explicit CodeSum(int32_t start) : sum_(vdupq_n_s32(BITS == 8 ? 0 : start * (1 << SHIFT))) {}
    void add(Codes first, Codes second, const int8_t* x) {
        const int8x8_t inputs = vld1_s8(x);
        sum_ = vdotq_lane_s32(sum_, signed_codes(first), inputs, 0);
        sum_ = vdotq_lane_s32(sum_, signed_codes(second), inputs, 1);
    }
    Ints finish() const { return sum_; }

   private:
    static int8x16_t signed_codes(Codes codes) {
        return vreinterpretq_s8_u8(BITS == 8 ? veorq_u8(codes, vdupq_n_u8(0x80)) : codes);
    }

    Ints sum_;
};

}  // namespace
}  // namespace slipstream::neon
