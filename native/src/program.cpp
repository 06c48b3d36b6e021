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

// Follows one layer and knows how wide the input of the next projection is.
struct Check {
    const Program& program;
    bool normalised = false;
    int produced = 0;

    void operator()(const Normalise& norm) {
        require(int(norm.weight.size()) == program.width, "a norm of it has the wrong size");
        normalised = true;
    }
    void operator()(const Attend& attend) {
        require(normalised, "attention comes without a norm before it");
        const int keys = program.key_value_heads * program.head_size;
        produced = program.heads * program.head_size;
        require_shape(attend.query, produced, program.width, "query");
        require_shape(attend.key, keys, program.width, "key");
        require_shape(attend.value, keys, program.width, "value");
    }
    void operator()(const GatedUnit& unit) {
        require(normalised, "a gated unit comes without a norm before it");
        produced = unit.gate.rows;
        require(produced % kGroup == 0, "its feed-forward size is no multiple of 32");
        require_shape(unit.gate, produced, program.width, "gate");
        require_shape(unit.up, produced, program.width, "up");
    }
    void operator()(const AddProjected& projection) {
        require(produced > 0, "a projection comes without anything to project");
        require_shape(projection.matrix, program.width, produced, "projection");
        normalised = false;
        produced = 0;
    }
};

}  // namespace

void Program::check() const {
    require(width > 0 && width % kGroup == 0, "its width is no multiple of 32");
    require(heads > 0 && key_value_heads > 0 && heads % key_value_heads == 0,
            "its number of heads is no multiple of its number of key-value heads");
    require(head_size > 0 && head_size % kGroup == 0, "its head size is no multiple of 32");
    require(rotary.size() <= head_size && rotary.size() % kGroup == 0,
            "its rotary embedding has a size that is no multiple of 32 or larger than a head");
    require(!layers.empty(), "it has no layers");
    require(embedding.columns == width && embedding.rows > 0, "its embedding has the wrong shape");
    require_shape(output, embedding.rows, width, "output");
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
