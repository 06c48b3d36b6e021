// Weight matrices in the layouts that the few-row kernels stream (docs/native.md draws them).
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

// Tensor types by their numbers in a GGUF file.
enum class Format : int { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, BF16 = 30 };

constexpr int kChannels = 16;  // output channels of a block
constexpr int kGroup = 32;     // activations that share a scale

bool is_known(int format);
bool is_quantised(Format format);
// Inputs of a group, the unit in which a format is stored: 32 for all so far, 256 for one with super-blocks.
int group_inputs(Format format);
// Bytes of a group of one channel in the file.
size_t file_group_bytes(Format format);
// Bytes of a group of a block of 16 channels in memory.
size_t group_bytes(Format format);

// [rows] output channels x [columns] inputs. One linear stream: for each block of 16 channels, its groups one after
// the other. Rows that fill up the last block are zero.
struct Matrix {
    Format format = Format::F32;
    int rows = 0;
    int columns = 0;  // a multiple of 32
    const uint8_t* data = nullptr;

    int blocks() const { return (rows + kChannels - 1) / kChannels; }
    int groups() const { return columns / group_inputs(format); }
    size_t block_bytes() const { return groups() * group_bytes(format); }
    size_t bytes() const { return blocks() * block_bytes(); }
    const uint8_t* block(int index) const { return data + index * block_bytes(); }
};

// Repacks 16 rows, or fewer at the end, from their bytes in the file to one block.
// source: [rows] of groups x file_group_bytes; target: groups x group_bytes, zeroed where rows < 16
void repack_block(Format format, const uint8_t* source, int rows, int groups, uint8_t* target);

// Row `row` as float, [columns]: an embedding.
void read_row(const Matrix& matrix, int row, float* out);

}  // namespace slipstream
