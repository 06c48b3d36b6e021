// What a decoder computes, as a list of fused operations. Python writes the list (runtime/native/architectures);
// here it is only data.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "matrix.hpp"

namespace slipstream {

// The residual stream x, normalised: the input of what follows.
struct Normalise {
    std::vector<float> weight;  // [width]
    float epsilon = 0;
};

// Queries, keys and values of the normalised stream; rotary embedding; cache; attention.
struct Attend {
    Matrix query, key, value;
    float scale = 1;
};

// x += matrix * (what the operation before computed)
struct AddProjected {
    Matrix matrix;
};

// silu(gate * normalised) * (up * normalised)
struct GatedUnit {
    Matrix gate, up;
};

using Operation = std::variant<Normalise, Attend, AddProjected, GatedUnit>;

struct Rotary {
    std::vector<float> frequencies;  // radians for each position, of each pair of a head's dimensions
    bool halves = false;             // pairs are (i, i + size / 2) instead of (2i, 2i + 1)

    int size() const { return int(2 * frequencies.size()); }
};

struct Program {
    int width = 0;
    int heads = 0;
    int key_value_heads = 0;
    int head_size = 0;
    Matrix embedding;
    Rotary rotary;
    std::vector<std::vector<Operation>> layers;
    Normalise output_norm;
    Matrix output;

    int vocabulary() const { return output.rows; }
    int group() const { return heads / key_value_heads; }  // query heads that share a key-value head

    // Throws std::invalid_argument with a clause about the file if matrices do not fit together.
    void check() const;
};

}  // namespace slipstream
