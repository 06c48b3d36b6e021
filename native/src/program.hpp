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

// The heads of queries, of keys or of values: matrix * normalised + bias, and each head normalised.
struct Heads {
    Matrix matrix;
    std::vector<float> bias;  // [heads * head_size], empty for none
    Normalise norm;           // weight: [head_size], empty for none
};

// Queries, keys and values of the normalised stream; rotary embedding; cache; attention.
struct Attend {
    Heads query, key, value;
    float scale = 1;
    int rotary = 0;  // which of the program's
    int window = 0;  // how many positions a row sees, the last of them its own; 0 for all
};

// x += matrix * (what the operation before computed)
struct AddProjected {
    Matrix matrix;
};

// x += norm(matrix * (what the operation before computed))
struct AddNormalised {
    Matrix matrix;
    Normalise norm;
};

enum class Activation { kSilu, kGelu };

// activation(gate * normalised) * (up * normalised)
struct GatedUnit {
    Matrix gate, up;
    Activation activation = Activation::kSilu;
};

using Operation = std::variant<Normalise, Attend, AddProjected, AddNormalised, GatedUnit>;

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
    float embedding_scale = 1;  // what an embedding is multiplied by
    std::vector<Rotary> rotaries;
    std::vector<std::vector<Operation>> layers;
    Normalise output_norm;
    Matrix output;

    int vocabulary() const { return output.rows; }
    int group() const { return heads / key_value_heads; }  // query heads that share a key-value head
    // Angles of a position: those of one rotary embedding lie behind those of the ones before it.
    int angles_before(int rotary) const;
    int angles() const { return angles_before(int(rotaries.size())); }
    // How many positions a row sees in each layer; 0 for all.
    std::vector<int> windows() const;

    // Throws std::invalid_argument with a clause about the file if matrices do not fit together.
    void check() const;
};

}  // namespace slipstream
