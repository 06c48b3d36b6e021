// From the file's form to ours. Codes and scales are moved, never rounded again; the forms in the file are those of
// ggml-common.h.
#include <array>
#include <cstring>
#include <stdexcept>

#include "matrix.hpp"

namespace slipstream {
namespace {

// A group of one channel, taken apart.
struct Group {
    uint8_t codes[kSuperBlock];  // [inputs]
    // Of a K-quant, in the order of our layout: for each 32 inputs two bytes, scale and minimum, or the scales of
    // the first and the second half.
    uint8_t scales[2 * kSuperBlock / kGroup];
    const uint8_t* scale;    // half precision
    const uint8_t* minimum;  // half precision, if the format has one
};

constexpr int kHalf = kGroup / 2;

// A byte holds inputs i and i + 16.
void take_nibbles(const uint8_t* bytes, Group& group) {
    for (int i = 0; i < kHalf; i++) {
        group.codes[i] = bytes[i] & 15;
        group.codes[i + kHalf] = bytes[i] >> 4;
    }
}

// Bit i of 32 is the fifth of code i.
void add_fifth_bits(const uint8_t* bytes, Group& group) {
    for (int i = 0; i < kGroup; i++) group.codes[i] |= uint8_t((bytes[i / 8] >> i % 8 & 1) << 4);
}

// Byte i of 32 holds four codes of two bits, 32 inputs apart; two such runs make a super-block.
void take_pairs_of_bits(const uint8_t* bytes, Group& group) {
    for (int run = 0; run < 2; run++)
        for (int field = 0; field < 4; field++)
            for (int i = 0; i < kGroup; i++)
                group.codes[128 * run + kGroup * field + i] = bytes[kGroup * run + i] >> 2 * field & 3;
}

// Byte i of 32 holds codes i and i + 32; four such runs make a super-block.
void take_long_nibbles(const uint8_t* bytes, Group& group) {
    for (int run = 0; run < 4; run++)
        for (int i = 0; i < kGroup; i++) {
            group.codes[64 * run + i] = bytes[kGroup * run + i] & 15;
            group.codes[64 * run + kGroup + i] = bytes[kGroup * run + i] >> 4;
        }
}

// Eight scales and eight minima of six bits in twelve bytes: of the first four the byte's low bits, of the others four
// bits of a byte of their own and the high two of one of those.
void take_scales_and_minima(const uint8_t* bytes, Group& group) {
    for (int i = 0; i < 4; i++) {
        group.scales[2 * i] = bytes[i] & 63;
        group.scales[2 * i + 1] = bytes[4 + i] & 63;
        group.scales[2 * i + 8] = uint8_t((bytes[8 + i] & 15) | bytes[i] >> 6 << 4);
        group.scales[2 * i + 9] = uint8_t(bytes[8 + i] >> 4 | bytes[4 + i] >> 6 << 4);
    }
}

template <Format FORMAT>
void take(const uint8_t* bytes, Group& group) {
    group.scale = bytes;
    group.minimum = bytes + 2;
    if constexpr (FORMAT == Format::Q4_0 || FORMAT == Format::IQ4_NL) {
        take_nibbles(bytes + 2, group);
    } else if constexpr (FORMAT == Format::Q4_1) {
        take_nibbles(bytes + 4, group);
    } else if constexpr (FORMAT == Format::Q5_0) {
        take_nibbles(bytes + 6, group);
        add_fifth_bits(bytes + 2, group);
    } else if constexpr (FORMAT == Format::Q5_1) {
        take_nibbles(bytes + 8, group);
        add_fifth_bits(bytes + 4, group);
    } else if constexpr (FORMAT == Format::Q8_0) {
        // Signed codes become unsigned ones, 128 higher: the integer units multiply unsigned by signed bytes.
        for (int i = 0; i < kGroup; i++) group.codes[i] = bytes[2 + i] ^ 0x80;
    } else if constexpr (FORMAT == Format::Q2_K) {
        std::memcpy(group.scales, bytes, sizeof group.scales);  // scales in the low bits, minima in the high
        take_pairs_of_bits(bytes + 16, group);
        group.scale = bytes + 80;
        group.minimum = bytes + 82;
    } else if constexpr (FORMAT == Format::Q3_K) {
        take_pairs_of_bits(bytes + 32, group);
        for (int i = 0; i < kSuperBlock; i++) group.codes[i] |= uint8_t((bytes[i % kGroup] >> i / kGroup & 1) << 2);
        const uint8_t* packed = bytes + 96;
        for (int i = 0; i < 16; i++) {
            const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
            group.scales[i] = uint8_t((low | (packed[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
        }
        group.scale = bytes + 108;
    } else if constexpr (FORMAT == Format::Q4_K) {
        take_scales_and_minima(bytes + 4, group);
        take_long_nibbles(bytes + 16, group);
    } else if constexpr (FORMAT == Format::Q5_K) {
        take_scales_and_minima(bytes + 4, group);
        take_long_nibbles(bytes + 48, group);
        for (int i = 0; i < kSuperBlock; i++)
            group.codes[i] |= uint8_t((bytes[16 + i % kGroup] >> i / kGroup & 1) << 4);
    } else if constexpr (FORMAT == Format::Q6_K) {
        for (int run = 0; run < 2; run++)
            for (int field = 0; field < 4; field++)
                for (int i = 0; i < kGroup; i++) {
                    const uint8_t both = bytes[64 * run + kGroup * (field % 2) + i];
                    const int low = field < 2 ? both & 15 : both >> 4;
                    const int high = bytes[128 + kGroup * run + i] >> 2 * field & 3;
                    group.codes[128 * run + kGroup * field + i] = uint8_t(low | high << 4);
                }
        std::memcpy(group.scales, bytes + 192, sizeof group.scales);
        group.scale = bytes + 208;
    }
}

// 32 inputs of one channel into the lines of a plane: the `BITS` bits from bit `FROM` on of each code.
template <int BITS, int FROM>
void pack_plane(const uint8_t* codes, int channel, uint8_t* lines) {
    constexpr uint32_t kMask = ((1u << BITS) - 1) * 0x01010101u;
    std::array<uint32_t, BITS> words{};
    for (int step = 0; step < kSteps; step++) {
        uint32_t four;
        std::memcpy(&four, codes + 4 * step, 4);
        words[line_of(step, BITS)] |= (four >> FROM & kMask) << bit_of(step, BITS);
    }
    for (int line = 0; line < BITS; line++) std::memcpy(lines + line * kLine + 4 * channel, &words[line], 4);
}

template <Format FORMAT>
void repack_quantised(const uint8_t* source, int channel, uint8_t* target) {
    constexpr Layout kLayout = layout_of(FORMAT);
    Group group;
    take<FORMAT>(source, group);
    for (int first = 0; first < kLayout.inputs; first += kGroup, target += kLayout.line_bytes()) {
        pack_plane<kLayout.low_bits, 0>(group.codes + first, channel, target);
        if constexpr (kLayout.high_bits > 0)
            pack_plane<kLayout.high_bits, kLayout.low_bits>(group.codes + first, channel,
                                                            target + kLayout.low_bits * kLine);
    }
    for (int i = 0; i < kLayout.scale_bytes() / kChannels; i++, target += kChannels) target[channel] = group.scales[i];
    std::memcpy(target + 2 * channel, group.scale, 2);
    if constexpr (kLayout.minimum) std::memcpy(target + kHalves + 2 * channel, group.minimum, 2);
}

template <int BYTES>
void repack_plain(const uint8_t* source, int channel, uint8_t* target) {
    for (int i = 0; i < kGroup; i++) std::memcpy(target + (i * kChannels + channel) * BYTES, source + i * BYTES, BYTES);
}

using Repack = void (*)(const uint8_t* source, int channel, uint8_t* target);

Repack repacker(Format format) {
    switch (format) {
        case Format::F32: return repack_plain<4>;
        case Format::F16:
        case Format::BF16: return repack_plain<2>;
        case Format::Q4_0: return repack_quantised<Format::Q4_0>;
        case Format::Q4_1: return repack_quantised<Format::Q4_1>;
        case Format::Q5_0: return repack_quantised<Format::Q5_0>;
        case Format::Q5_1: return repack_quantised<Format::Q5_1>;
        case Format::Q8_0: return repack_quantised<Format::Q8_0>;
        case Format::Q2_K: return repack_quantised<Format::Q2_K>;
        case Format::Q3_K: return repack_quantised<Format::Q3_K>;
        case Format::Q4_K: return repack_quantised<Format::Q4_K>;
        case Format::Q5_K: return repack_quantised<Format::Q5_K>;
        case Format::Q6_K: return repack_quantised<Format::Q6_K>;
        case Format::IQ4_NL: return repack_quantised<Format::IQ4_NL>;
    }
    throw std::logic_error("a tensor type without a layout");
}

}  // namespace

void repack_block(Format format, const uint8_t* source, int rows, int groups, uint8_t* target) {
    const Repack repack = repacker(format);
    const Layout layout = layout_of(format);
    const size_t from = layout.file_bytes, to = layout.group_bytes();
    if (rows < kChannels) std::memset(target, 0, groups * to);
    for (int group = 0; group < groups; group++)
        for (int channel = 0; channel < rows; channel++)
            repack(source + (size_t(channel) * groups + group) * from, channel, target + group * to);
}

}  // namespace slipstream
