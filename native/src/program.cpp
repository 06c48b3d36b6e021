#include "program.hpp"

#include <stdexcept>

namespace slipstream {
namespace {

void require(bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument(what);
}

void require_shape(const Matrix& matrix, int rows, int columns, const char* what) {
    require(matrix.rows == rows && matrix.columns == columns,
            std::string("its ") + what + " matrix is " + std::to_string(matrix.rows) + " x " +
                std::to_string(matrix.columns) + " where " + std::to_string(rows) + " x " + std::to_string(columns) +
                " is needed");
}

void require_norm(const Normalise& norm, int size) {
    require(int(norm.weight.size()) == size, "a norm of it has the wrong size");
}

// Follows one layer and knows how wide the input of the next projection is.
struct Check {
    const Program& program;
    int input = 0;  // numbers in a normalised row; 0 without a norm
    int produced = 0;

    void operator()(const Normalise& norm) {
        require_norm(norm, program.width);
        input = program.width;
    }
    void operator()(const Join& join) {
        require(program.fuse.used(), "it joins embeddings without anything to join them to");
        require_norm(join.embedding, program.width);
        if (!join.stream.weight.empty()) require_norm(join.stream, program.width);
        input = 2 * program.width;
    }
    void operator()(const ReadEmbedding& read) {
        require(program.fuse.used(), "it reads embeddings that nobody gives");
        require_norm(read.norm, program.width);
        produced = program.width;
    }
    void operator()(const Attend& attend) {
        require(input > 0, "attention comes without a norm before it");
        const int keys = program.key_value_heads * program.head_size;
        produced = program.heads * program.head_size;
        check(attend.query, produced, "query");
        check(attend.key, keys, "key");
        check(attend.value, keys, "value");
        require(attend.rotary >= 0 && attend.rotary < int(program.rotaries.size()),
                "attention asks for a rotary embedding that it lacks");
        require(attend.window >= 0, "its attention has a window of less than nothing");
    }
    void check(const Heads& heads, int rows, const char* what) const {
        require_shape(heads.matrix, rows, input, what);
        require(heads.bias.empty() || int(heads.bias.size()) == rows,
                std::string("its ") + what + " bias has the wrong size");
        if (!heads.norm.weight.empty()) require_norm(heads.norm, program.head_size);
    }
    void operator()(const GatedUnit& unit) {
        require(input > 0, "a gated unit comes without a norm before it");
        produced = unit.gate.rows;
        require(produced % kGroup == 0, "its feed-forward size is no multiple of 32");
        require_shape(unit.gate, produced, input, "gate");
        require_shape(unit.up, produced, input, "up");
    }
    void operator()(const AddProjected& projection) { project(projection.matrix); }
    void operator()(const AddNormalised& projection) {
        project(projection.matrix);
        require_norm(projection.norm, program.width);
    }
    void project(const Matrix& matrix) {
        require(produced > 0, "a projection comes without anything to project");
        require_shape(matrix, program.width, produced, "projection");
        input = 0;
        produced = 0;
    }
};

}  // namespace

int Program::angles_before(int rotary) const {
    int angles = 0;
    for (int i = 0; i < rotary; i++) angles += rotaries[i].size();
    return angles;
}

std::vector<int> Program::windows() const {
    std::vector<int> windows;
    for (const auto& layer : layers) {
        windows.push_back(0);
        for (const Operation& operation : layer)
            if (const auto* attend = std::get_if<Attend>(&operation)) windows.back() = attend->window;
    }
    return windows;
}

int Program::input_width() const {
    for (const auto& layer : layers)
        for (const Operation& operation : layer)
            if (std::holds_alternative<Join>(operation)) return 2 * width;
    return width;
}

void Program::check() const {
    require(width > 0 && width % kGroup == 0, "its width is no multiple of 32");
    require(heads > 0 && key_value_heads > 0 && heads % key_value_heads == 0,
            "its number of heads is no multiple of its number of key-value heads");
    require(head_size > 0 && head_size % kGroup == 0, "its head size is no multiple of 32");
    for (const Rotary& rotary : rotaries)
        require(rotary.size() <= head_size && rotary.size() % kGroup == 0,
                "its rotary embedding has a size that is no multiple of 32 or larger than a head");
    require(!layers.empty(), "it has no layers");
    if (fuse.used()) {
        require_shape(fuse.matrix, width, fuse.matrix.columns, "fusing");
        if (!fuse.before.weight.empty()) require_norm(fuse.before, fuse.matrix.columns);
        if (!fuse.after.weight.empty()) require_norm(fuse.after, width);
        require(embedding.rows == 0 || embedding.columns == width, "its embedding has the wrong shape");
        require_shape(output, output.rows, width, "output");
    } else {
        require(embedding.columns == width && embedding.rows > 0, "its embedding has the wrong shape");
        require_shape(output, embedding.rows, width, "output");
    }
    require(int(output_norm.weight.size()) == width, "its last norm has the wrong size");
    for (const auto& layer : layers) {
        Check follow{*this};
        int attentions = 0;
        for (const Operation& operation : layer) {
            std::visit(follow, operation);
            attentions += std::holds_alternative<Attend>(operation);
        }
        require(attentions <= 1, "a layer of it attends twice");
    }
}

}  // namespace slipstream
