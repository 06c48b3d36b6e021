// Conversions between float and the two 16-bit formats, one number at a time.
#pragma once

#include <bit>
#include <cstdint>

namespace slipstream {

// Without branches, so that compilers vectorise it. The exponent is right after a multiplication, for subnormals too;
// infinities and NaNs get theirs by force.
inline float half_to_float(uint16_t half) {
    const float magnitude = std::bit_cast<float>(uint32_t(half & 0x7fff) << 13) * 0x1p112f;
    const uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special | uint32_t(half & 0x8000) << 16);
}

// Rounds to the nearest, ties to even, as the processors' own conversion does.
inline uint16_t float_to_half(float number) {
    const uint32_t bits = std::bit_cast<uint32_t>(number);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));  // NaN
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);                             // 65520 and more
    if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded fraction in the lowest bits
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

inline float bfloat_to_float(uint16_t number) { return std::bit_cast<float>(uint32_t(number) << 16); }

}  // namespace slipstream
