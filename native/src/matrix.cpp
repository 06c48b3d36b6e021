#include "matrix.hpp"

#include <cstring>
#include <stdexcept>

#include "half.hpp"

namespace slipstream {
namespace {

constexpr int kLine = 4 * kChannels;  // bytes: four codes of each of 16 channels
constexpr uint32_t kLow = 0x0f0f0f0f;

uint32_t load32(const uint8_t* bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

void store32(uint8_t* bytes, uint32_t word) { std::memcpy(bytes, &word, sizeof word); }

uint16_t load16(const uint8_t* bytes) {
    uint16_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

// One group of one channel. In the file a byte holds inputs i and i + 16; in memory line j holds inputs
// 8j to 8j + 3 in the low and 8j + 4 to 8j + 7 in the high halves of four bytes.
void repack_nibbles(const uint8_t* codes, int channel, uint8_t* lines) {
    for (int half = 0; half < 2; half++) {
        const uint32_t a = load32(codes + 8 * half), b = load32(codes + 8 * half + 4);
        store32(lines + half * kLine + 4 * channel, (a & kLow) | (b & kLow) << 4);
        store32(lines + (half + 2) * kLine + 4 * channel, (a >> 4 & kLow) | (b & ~kLow));
    }
}

void repack_q4_0(const uint8_t* source, int channel, uint8_t* target) {
    repack_nibbles(source + 2, channel, target);
    std::memcpy(target + 4 * kLine + 2 * channel, source, 2);
}

void repack_q4_1(const uint8_t* source, int channel, uint8_t* target) {
    repack_nibbles(source + 4, channel, target);
    std::memcpy(target + 4 * kLine + 2 * channel, source, 2);
    std::memcpy(target + 4 * kLine + 2 * kChannels + 2 * channel, source + 2, 2);
}

// Signed codes become unsigned ones, 128 higher: the integer units multiply unsigned by signed bytes.
void repack_q8_0(const uint8_t* source, int channel, uint8_t* target) {
    for (int line = 0; line < 8; line++)
        store32(target + line * kLine + 4 * channel, load32(source + 2 + 4 * line) ^ 0x80808080);
    std::memcpy(target + 8 * kLine + 2 * channel, source, 2);
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
        case Format::Q4_0: return repack_q4_0;
        case Format::Q4_1: return repack_q4_1;
        case Format::Q8_0: return repack_q8_0;
    }
    throw std::logic_error("a tensor type without a layout");
}

// One group of one channel as float.
void read_group(Format format, const uint8_t* group, int channel, float* out) {
    const auto nibble = [&](int i) {
        const uint8_t both = group[i / 8 * kLine + 4 * channel + i % 4];
        return i % 8 < 4 ? both & 15 : both >> 4;
    };
    const auto number = [&](size_t offset) { return half_to_float(load16(group + offset + 2 * channel)); };
    for (int i = 0; i < kGroup; i++) {
        const size_t place = size_t(i) * kChannels + channel;
        switch (format) {
            case Format::F32: std::memcpy(out + i, group + 4 * place, 4); break;
            case Format::F16: out[i] = half_to_float(load16(group + 2 * place)); break;
            case Format::BF16: out[i] = bfloat_to_float(load16(group + 2 * place)); break;
            case Format::Q4_0: out[i] = number(4 * kLine) * float(nibble(i) - 8); break;
            case Format::Q4_1: out[i] = number(4 * kLine) * float(nibble(i)) + number(4 * kLine + 2 * kChannels); break;
            case Format::Q8_0:
                out[i] = number(8 * kLine) * float(int(group[i / 4 * kLine + 4 * channel + i % 4]) - 128);
                break;
        }
    }
}

}  // namespace

bool is_known(int format) {
    switch (Format(format)) {
        case Format::F32:
        case Format::F16:
        case Format::BF16:
        case Format::Q4_0:
        case Format::Q4_1:
        case Format::Q8_0: return true;
    }
    return false;
}

bool is_quantised(Format format) { return format == Format::Q4_0 || format == Format::Q4_1 || format == Format::Q8_0; }

size_t file_group_bytes(Format format) {
    switch (format) {
        case Format::F32: return 4 * kGroup;
        case Format::F16:
        case Format::BF16: return 2 * kGroup;
        case Format::Q4_0: return 2 + kGroup / 2;
        case Format::Q4_1: return 4 + kGroup / 2;
        case Format::Q8_0: return 2 + kGroup;
    }
    throw std::logic_error("a tensor type without a size");
}

int group_inputs(Format) { return kGroup; }

size_t group_bytes(Format format) { return kChannels * file_group_bytes(format); }

void repack_block(Format format, const uint8_t* source, int rows, int groups, uint8_t* target) {
    const Repack repack = repacker(format);
    const size_t from = file_group_bytes(format), to = group_bytes(format);
    if (rows < kChannels) std::memset(target, 0, groups * to);
    for (int group = 0; group < groups; group++)
        for (int channel = 0; channel < rows; channel++)
            repack(source + (size_t(channel) * groups + group) * from, channel, target + group * to);
}

void read_row(const Matrix& matrix, int row, float* out) {
    const uint8_t* group = matrix.block(row / kChannels);
    const size_t step = group_bytes(matrix.format);
    for (int i = 0; i < matrix.groups(); i++, group += step)
        read_group(matrix.format, group, row % kChannels, out + i * kGroup);
}

}  // namespace slipstream
