// The arithmetic of a forward, once for each instruction set.
//
// Every function computes its rows one by one in an order that depends on nothing but the row: not on how many rows
// there are, nor on which others. So a row's result is the same bits in every company. `docs/native.md` says how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "matrix.hpp"

namespace slipstream {

// Rows of activations, in the forms that matrices want them: [rows, columns] values and codes, [rows, columns / 32]
// scales, starts and sums, [rows, columns / 16] of the last two.
struct Activations {
    int columns = 0;
    float* values = nullptr;      // for F32, F16 and BF16
    int8_t* codes = nullptr;      // for the quantised formats: value = scale * code
    float* scales = nullptr;      // of a group of 32
    int32_t* starts = nullptr;    // -8 * sum of the group's codes: what Q4_0 adds because its weights are code - 8
    float* sums = nullptr;        // scale * sum of the group's codes: what the minimum of Q4_1 multiplies
    int32_t* starts16 = nullptr;  // -4 * sum of 16 codes: for formats with a scale for each 16 weights
    float* sums16 = nullptr;      // scale * sum of 16 codes

    // From row `row` and column `column`, a multiple of 32, on.
    Activations from(int row, int column = 0) const {
        const size_t value = size_t(row) * columns + column, group = value / kGroup, half = value / 16;
        return {columns,        values + value, codes + value,   scales + group,
                starts + group, sums + group,   starts16 + half, sums16 + half};
    }
};

constexpr int kKeyBlock = 64;  // positions of a block of the KV cache

struct Kernels {
    const char* name;

    // out[r * stride + i] = channel i of block `block` times row r, for i in 0..15
    void (*product)(const Matrix& matrix, int block, const Activations& x, int rows, float* out, ptrdiff_t stride);

    // out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]
    void (*normalise)(const float* x, const float* weight, float epsilon, int count, float* out);

    // out = x in all forms but `values`; x: [count] with count a multiple of 32
    void (*quantise)(const float* x, int count, const Activations& out);

    // Numbers [first, first + count) of one row. Always, whatever reads it: the codes cost little beside a product.
    void quantise_part(const Activations& row, int first, int count) const {
        quantise(row.values + first, count, row.from(0, first));
    }

    // out[i] = silu(gate[i]) * up[i], and with gelu in its approximation by tanh
    void (*gate_silu)(const float* gate, const float* up, int count, float* out);
    void (*gate_gelu)(const float* gate, const float* up, int count, float* out);

    // sum[i] += x[i]
    void (*add)(const float* x, int count, float* sum);

    // x[i] = (x[i] * cosine[i] + partner(x[i]) * sine[i]) * scale, where the partner is the other one of a pair of
    // neighbours, or with `halves` the one half a vector away; sine carries the sign
    void (*rotate)(float* x, const float* cosine, const float* sine, int count, bool halves, float scale);

    void (*scale)(float* x, int count, float factor);

    void (*to_half)(const float* x, int count, uint16_t* out);

    // out[q * stride + j] = sum over d of queries[q, d] * keys[j, d], d ascending, for the 64 keys of a block
    // keys: [64 / 16, size, 16] half; queries: [count, size]
    void (*scores)(const uint16_t* keys, int size, const float* queries, int count, float* out, ptrdiff_t stride);

    // scores[i] = exp(scores[i] - maximum); returns their sum. Writes up to 15 numbers beyond the end.
    float (*soften)(float* scores, int count, float* maximum);

    // sums[q, d] += sum over j of weights[q * stride + j] * values[j, d], j ascending
    // values: [positions, size] half; sums: [queries, size]
    void (*mix)(const uint16_t* values, int positions, int size, const float* weights, ptrdiff_t stride, int queries,
                float* sums);
};

// Names of the instruction sets that this build has and this processor runs, the fastest first.
std::vector<std::string> instruction_sets();

// Throws std::invalid_argument for a name that is not among them.
const Kernels& kernels_for(const std::string& name);

}  // namespace slipstream
