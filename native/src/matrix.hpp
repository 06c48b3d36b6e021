// Weight matrices in the layouts that the few-row kernels stream (docs/native.md draws them).
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// Tensor types by their numbers in a GGUF file.
enum class Format : int {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    BF16 = 30,
};

constexpr int kChannels = 16;           // output channels of a block
constexpr int kGroup = 32;              // activations that share a scale
constexpr int kSuperBlock = 256;        // inputs of a K-quant that share the scale of their scales
constexpr int kLine = 4 * kChannels;    // bytes: four codes of each of 16 channels
constexpr int kSteps = kGroup / 4;      // times four inputs of a group
constexpr int kScales = 2 * kChannels;  // bytes of scales of 32 inputs of a K-quant
constexpr int kHalves = 2 * kChannels;  // bytes of a half-precision number of each channel

// How a format stores numbers: value = scale * (code - offset), or scale * code + minimum.
struct Layout {
    int inputs = kGroup;  // of a stored group: 32, or 256 with scales of scales
    int shared = kGroup;  // inputs that share a scale: 32 or 16
    int low_bits = 0;     // of a code, in the group's first lines; 0 for plain numbers
    int high_bits = 0;    // of a code, in the lines behind those
    int offset = 0;       // of a code
    bool minimum = false;
    bool table = false;  // a code is a place in kCurve
    int file_bytes = 0;  // of a stored group of one channel, in the file

    constexpr bool quantised() const { return low_bits > 0; }
    constexpr bool super() const { return inputs == kSuperBlock; }
    constexpr int code_bits() const { return table ? 8 : low_bits + high_bits; }
    // Bytes of a block of 16 channels: the codes of 32 inputs, of all, and of a stored group with its scales.
    constexpr int line_bytes() const { return kLine * (low_bits + high_bits); }
    constexpr int code_bytes() const { return line_bytes() * (inputs / kGroup); }
    constexpr int scale_bytes() const { return super() ? kScales * (inputs / kGroup) : 0; }
    constexpr int group_bytes() const {
        return quantised() ? code_bytes() + scale_bytes() + kHalves * (minimum ? 2 : 1) : kChannels * file_bytes;
    }
};

constexpr Layout layout_of(Format format) {
    switch (format) {
        case Format::F32: return {.file_bytes = 4 * kGroup};
        case Format::F16:
        case Format::BF16: return {.file_bytes = 2 * kGroup};
        case Format::Q4_0: return {.low_bits = 4, .offset = 8, .file_bytes = 18};
        case Format::Q4_1: return {.low_bits = 4, .minimum = true, .file_bytes = 20};
        case Format::Q5_0: return {.low_bits = 4, .high_bits = 1, .offset = 16, .file_bytes = 22};
        case Format::Q5_1: return {.low_bits = 4, .high_bits = 1, .minimum = true, .file_bytes = 24};
        case Format::Q8_0: return {.low_bits = 8, .offset = 128, .file_bytes = 34};
        case Format::Q2_K:
            return {.inputs = kSuperBlock, .shared = 16, .low_bits = 2, .minimum = true, .file_bytes = 84};
        case Format::Q3_K:
            return {.inputs = kSuperBlock, .shared = 16, .low_bits = 2, .high_bits = 1, .offset = 4, .file_bytes = 110};
        case Format::Q4_K: return {.inputs = kSuperBlock, .low_bits = 4, .minimum = true, .file_bytes = 144};
        case Format::Q5_K:
            return {.inputs = kSuperBlock, .low_bits = 4, .high_bits = 1, .minimum = true, .file_bytes = 176};
        case Format::Q6_K:
            return {
                .inputs = kSuperBlock, .shared = 16, .low_bits = 4, .high_bits = 2, .offset = 32, .file_bytes = 210};
        case Format::IQ4_NL: return {.low_bits = 4, .offset = 128, .table = true, .file_bytes = 18};
    }
    return {};
}

// The values of IQ4_NL's codes, 128 too high.
alignas(16) inline constexpr uint8_t kCurve[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                   129, 141, 153, 166, 181, 197, 217, 241};

// Step `step` (inputs 4 * step to 4 * step + 3 of 32) of a plane of so many bits a code: its line, and the bit in each
// of the line's bytes where its codes begin.
constexpr int line_of(int step, int bits) { return step * bits / 8; }
constexpr int bit_of(int step, int bits) { return step * bits % 8; }

bool is_known(int format);
inline bool is_quantised(Format format) { return layout_of(format).quantised(); }

// [rows] output channels x [columns] inputs. One linear stream: for each block of 16 channels, its groups one after
// the other. Rows that fill up the last block are zero.
struct Matrix {
    Format format = Format::F32;
    int rows = 0;
    int columns = 0;  // a multiple of 32
    const uint8_t* data = nullptr;

    int blocks() const { return (rows + kChannels - 1) / kChannels; }
    int groups() const { return columns / layout_of(format).inputs; }
    size_t block_bytes() const { return size_t(groups()) * layout_of(format).group_bytes(); }
    size_t bytes() const { return blocks() * block_bytes(); }
    const uint8_t* block(int index) const { return data + index * block_bytes(); }
};

// Repacks 16 rows, or fewer at the end, from their bytes in the file to one block.
// source: [rows] of groups x file_bytes; target: groups x group_bytes, zeroed where rows < 16
void repack_block(Format format, const uint8_t* source, int rows, int groups, uint8_t* target);

// Row `row` as float, [columns]: an embedding.
void read_row(const Matrix& matrix, int row, float* out);

}  // namespace slipstream
