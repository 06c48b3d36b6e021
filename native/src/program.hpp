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

// The embedding of each row's token, normalised, and behind it the residual stream, normalised unless that norm has no
// weight: an input twice as wide. For programs that begin with Fuse.
struct Join {
    Normalise embedding, stream;
};

// The embedding of each row's token, normalised: what the next projection reads. For programs that begin with Fuse.
struct ReadEmbedding {
    Normalise norm;
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

using Operation = std::variant<Normalise, Join, ReadEmbedding, Attend, AddProjected, AddNormalised, GatedUnit>;

// How rows begin that go on from another model's hidden states: x = after(matrix * before(states)). Norms without a
// weight are left out. Rows that go on from a state of their own kind begin with x = after(state).
struct Fuse {
    Matrix matrix;  // [width, numbers of the hidden states]
    Normalise before, after;

    bool used() const { return matrix.rows > 0; }
};

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
    Matrix embedding;           // without rows where `fuse` is used and whoever calls has embeddings
    float embedding_scale = 1;  // what an embedding is multiplied by
    Fuse fuse;
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
    // Numbers in the widest input of a layer.
    int input_width() const;

    // Throws std::invalid_argument with a clause about the file if matrices do not fit together.
    void check() const;
};

}  // namespace slipstream
