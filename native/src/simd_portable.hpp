// 16 lanes in plain C++: loops that compilers turn into whatever the target has.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "kernels.hpp"

namespace slipstream::portable {
namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 2;  // more would be code that takes minutes to compile with sanitizers
constexpr int kScoreVectors = 1;
constexpr int kWideQueries = 4;
constexpr int kMixQueries = 2;

struct Floats {
    float lane[kLanes];
};
struct Ints {
    int32_t lane[kLanes];
};
struct Codes {
    uint8_t byte[4 * kLanes];
};

template <class Function>
inline Floats each(Function function) {
    Floats result;
    for (int i = 0; i < kLanes; i++) result.lane[i] = function(i);
    return result;
}

inline Floats zero() {
    return each([](int) { return 0.0f; });
}
inline Floats set(float x) {
    return each([&](int) { return x; });
}
inline Floats load(const float* p) {
    return each([&](int i) { return p[i]; });
}
inline void store(float* p, Floats x) { std::memcpy(p, x.lane, sizeof x.lane); }
inline Floats add(Floats a, Floats b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Floats sub(Floats a, Floats b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Floats mul(Floats a, Floats b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats div(Floats a, Floats b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
#ifdef __FP_FAST_FMAF
inline Floats fma(Floats a, Floats b, Floats c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
#else  // a library call for each would take a hundred times as long
inline Floats fma(Floats a, Floats b, Floats c) { return add(mul(a, b), c); }
#endif
inline Floats max(Floats a, Floats b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats min(Floats a, Floats b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats abs(Floats a) {
    return each([&](int i) { return std::fabs(a.lane[i]); });
}
// To the nearest whole number, ties to even, for |x| < 2^22.
inline Floats round(Floats a) {
    return each([&](int i) { return (a.lane[i] + 12582912.0f) - 12582912.0f; });
}
inline Floats power_of_two(Floats n) {
    return each([&](int i) { return std::bit_cast<float>((int32_t(n.lane[i]) + 127) << 23); });
}
inline Floats swap_pairs(Floats a) {
    return each([&](int i) { return a.lane[i ^ 1]; });
}
inline Floats load_half(const uint16_t* p) {
    return each([&](int i) { return half_to_float(p[i]); });
}
inline Floats load_bfloat(const uint16_t* p) {
    return each([&](int i) { return bfloat_to_float(p[i]); });
}
inline void store_half(uint16_t* p, Floats a) {
    for (int i = 0; i < kLanes; i++) p[i] = float_to_half(a.lane[i]);
}
inline Floats to_floats(Ints a) {
    return each([&](int i) { return float(a.lane[i]); });
}
inline float largest(Floats a) {
    float result = a.lane[0];
    for (int i = 1; i < kLanes; i++) result = a.lane[i] > result ? a.lane[i] : result;
    return result;
}
inline float total(Floats a) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.lane[i] += a.lane[i + half];
    return a.lane[0];
}
inline int32_t store_codes(int8_t* p, Floats a) {
    int32_t sum = 0;
    for (int i = 0; i < kLanes; i++) {
        const auto whole = int32_t(a.lane[i]);
        p[i] = int8_t(whole);
        sum += whole;
    }
    return sum;
}

// kLanes bytes as whole numbers.
template <class Byte>
inline Ints widen(const Byte* p) {
    Ints result;
    for (int i = 0; i < kLanes; i++) result.lane[i] = int16_t{p[i]};
    return result;
}
template <int FROM>
inline Ints four_bits(Ints a) {
    for (auto& lane : a.lane) lane = lane >> FROM & 15;
    return a;
}

inline Codes load_codes(const uint8_t* p) {
    Codes codes;
    std::memcpy(codes.byte, p, sizeof codes.byte);
    return codes;
}
// `COUNT` bits of each byte, from bit `FROM` to bit `TO`.
template <int FROM, int COUNT, int TO>
inline Codes bits(Codes a) {
    for (auto& byte : a.byte) byte = uint8_t((byte >> FROM & ((1 << COUNT) - 1)) << TO);
    return a;
}
inline Codes merge(Codes a, const Codes& b) {
    for (int i = 0; i < 4 * kLanes; i++) a.byte[i] |= b.byte[i];
    return a;
}
// The bytes of `table` [16] at the places `a`.
inline Codes look_up(const uint8_t* table, Codes a) {
    for (auto& byte : a.byte) byte = table[byte];
    return a;
}
inline void prefetch_far(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

// Sums of products of unsigned codes with signed bytes: four at x with the codes `first`, and the four behind them with
// `second`. They begin with start * 2^SHIFT.
template <int BITS, int SHIFT>
class CodeSum {
   public:
    explicit CodeSum(int32_t start) {
        for (auto& lane : sum_.lane) lane = start * (1 << SHIFT);
    }
    void add(const Codes& first, const Codes& second, const int8_t* x) {
        for (int i = 0; i < kLanes; i++)
            for (int j = 0; j < 4; j++)
                sum_.lane[i] += int32_t(first.byte[4 * i + j]) * x[j] + int32_t(second.byte[4 * i + j]) * x[4 + j];
    }
    Ints finish() const { return sum_; }

   private:
    Ints sum_;
};

}  // namespace
}  // namespace slipstream::portable
