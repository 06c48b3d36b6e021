#include "model.hpp"

#include <algorithm>
#include <limits>

#include "buffers.hpp"
#include "forward.hpp"
#include "require.hpp"

namespace slipstream {
namespace {

CacheShape cache_shape(const Program& program) {
    return {program.key_value_heads, program.head_size, program.windows()};
}

void check_segment(const Segment& segment, Cache& cache, int vocabulary, int layers_asked) {
    const Session& session = cache.at(segment.session);
    const int count = int(segment.tokens.size());
    require(session.open, "the session is closed");
    require(count > 0, "a segment needs rows");
    require(segment.outputs >= 0 && segment.outputs <= count, "more outputs than rows");
    require(segment.parents.empty() || int(segment.parents.size()) == count, "one parent for each row");
    for (int i = 0; i < count; i++) {
        require(segment.tokens[i] >= 0 && segment.tokens[i] < vocabulary, "a token that the vocabulary lacks");
        if (!segment.parents.empty())
            require(segment.parents[i] >= -1 && segment.parents[i] < i, "parents come before their children");
    }
    const int before = layers_asked ? session.used() : session.length;
    require(before + count <= cache.context(), "the session's context is full");
}

void check_fused(const std::vector<int>& fused, int rows) {
    std::vector<bool> seen(rows);
    for (int row : fused) {
        require(row >= 0 && row < rows && !seen[row], "a fused row that is none, or is there twice");
        seen[row] = true;
    }
}

std::vector<int> parents_of(const Segment& segment) {
    if (!segment.parents.empty()) return segment.parents;
    std::vector<int> parents(segment.tokens.size());
    for (size_t i = 0; i < parents.size(); i++) parents[i] = int(i) - 1;
    return parents;
}

}  // namespace

Model::Model(std::shared_ptr<const Weights> weights, Program program, const Kernels& kernels,
             std::shared_ptr<ThreadPool> pool, Limits limits)
    : weights_(std::move(weights)),
      program_((program.check(), std::move(program))),
      kernels_(kernels),
      pool_(std::move(pool)),
      limits_(limits),
      cache_(cache_shape(program_), limits),
      buffers_(new Buffers(program_, limits, pool_->threads())) {}

Model::~Model() = default;

void Model::forward(const std::vector<Segment>& segments, const std::vector<int>& layers,
                    const std::vector<int>& hidden, const std::function<bool()>& interrupted,
                    const Beginnings* beginnings) {
    require(!running_.exchange(true), "a forward of this model is running");
    const struct Done {
        std::atomic<bool>& running;
        ~Done() { running = false; }
    } done{running_};
    require(program_.fuse.used() == (beginnings != nullptr), "rows begin with hidden states where they are fused");
    const int vocabulary = beginnings ? std::numeric_limits<int>::max() : program_.vocabulary();
    int rows = 0, outputs = 0;
    for (size_t i = 0; i < segments.size(); i++) {
        check_segment(segments[i], cache_, vocabulary, int(layers.size()));
        for (size_t j = 0; j < i; j++) require(segments[j].session != segments[i].session, "one segment for a session");
        rows += int(segments[i].tokens.size());
        outputs += segments[i].outputs;
    }
    require(rows > 0 && rows <= limits_.rows, "more rows than a forward can have");
    if (beginnings) check_fused(beginnings->fused, rows);
    int before = -1;
    for (int layer : layers) {
        require(layer >= 0 && layer < int(program_.layers.size()), "a layer that the model lacks");
        require(layer > before, "layers must ascend");
        before = layer;
    }
    for (int layer : hidden) {
        require(layer >= 0 && layer < int(program_.layers.size()), "a hidden state of a layer that the model lacks");
        require(layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end(),
                "a hidden state of a layer that is not run");
    }
    for (const Segment& segment : segments) cache_.prepare(segment.session, parents_of(segment), !layers.empty());
    hidden_.clear();
    rows_ = rows;
    outputs_ = outputs;
    buffers_->most_outputs = std::max(buffers_->most_outputs, outputs);
    try {
        Forward(*this, segments, layers, hidden, interrupted, beginnings).run();
    } catch (...) {  // nothing of it can be committed
        for (const Segment& segment : segments) cache_.at(segment.session).parents.clear();
        rows_ = outputs_ = 0;
        throw;
    }
}

const float* Model::logits() const { return buffers_->logits; }

int Model::logits_stride() const { return buffers_->logits_stride; }

HiddenState Model::hidden_state(int layer) const {
    for (const auto& [kept, values] : hidden_)
        if (kept == layer) return values;
    throw std::logic_error("no hidden states of this layer were asked for");
}

Cache& Model::cache() {
    require(!running_, "a forward of this model is running");
    return cache_;
}

size_t Model::buffer_bytes() const {
    return Buffers::bytes(program_, limits_, pool_->threads(), std::max(kExpectedOutputs, buffers_->most_outputs));
}

size_t Model::buffer_bytes_for(const Program& program, const Limits& limits, int threads) {
    return Buffers::bytes(program, limits, threads, kExpectedOutputs);
}

}  // namespace slipstream
