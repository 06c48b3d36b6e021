#include "forward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace slipstream {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(50);

}  // namespace

// ---- What is to be computed ----------------------------------------------------------------------------------------

Forward::Forward(Model& model, const std::vector<Segment>& segments, const std::vector<int>& layers,
                 const std::vector<int>& hidden, const std::function<bool()>& interrupted, const Beginnings* beginnings)
    : model_(model),
      program_(model.program_),
      kernels_(model.kernels_),
      pool_(*model.pool_),
      shares_(pool_.shares()),
      cache_(model.cache_),
      buffers_(*model.buffers_),
      layers_(layers),
      interrupted_(interrupted),
      beginnings_(beginnings),
      head_size_(program_.head_size),
      width_(program_.width) {
    for (const Segment& segment : segments) add_rows(segment);
    for (int layer : hidden)
        model_.hidden_.emplace_back(layer, std::make_shared<std::vector<float>>(rows_.size() * width_));
    for (int window : cache_.windows()) attentions_.emplace_back(model_, rows_, spans_, window);
    compute_rotary();
}

void Forward::add_rows(const Segment& segment) {
    const Session& session = cache_.at(segment.session);
    const int first = int(rows_.size()), count = int(segment.tokens.size()), base = session.used();
    bool tree = false;
    for (int i = 0; i < count; i++) {
        const int parent = segment.parents.empty() ? i - 1 : segment.parents[i];
        const int position = parent < 0 ? base : rows_[first + parent].position + 1;
        tree |= parent != i - 1;
        rows_.push_back({segment.session, segment.tokens[i], position, base + i, parent < 0 ? -1 : first + parent});
    }
    for (int i = count - segment.outputs; i < count; i++) outputs_.push_back(first + i);
    spans_.push_back({segment.session, first, count, tree});
}

void Forward::compute_rotary() {
    const int angles = program_.angles();
    for (size_t row = 0; row < rows_.size(); row++) {
        float* cosine = buffers_.cosines + row * angles;
        float* sine = buffers_.sines + row * angles;
        for (const Rotary& rotary : program_.rotaries) {
            const int size = rotary.size(), pairs = size / 2;
            for (int i = 0; i < pairs; i++) {
                const double angle = double(rows_[row].position) * double(rotary.frequencies[i]);
                const int one = rotary.halves ? i : 2 * i, other = rotary.halves ? i + pairs : 2 * i + 1;
                cosine[one] = cosine[other] = float(std::cos(angle));
                sine[other] = float(std::sin(angle));
                sine[one] = -sine[other];
            }
            cosine += size;
            sine += size;
        }
    }
}

// ---- The threads' walk ---------------------------------------------------------------------------------------------

void Forward::run() {
    model_.profile_.fill(0);
    asked_ = stage_start_ = Clock::now();
    pool_.run_in_crowd([this](int thread) { run_thread(thread); });
    if (stop_after_.load(std::memory_order_relaxed) != kNever) throw Interrupted();
}

void Forward::run_thread(int thread) {
    if (beginnings_)
        begin(thread, *beginnings_);
    else
        embed(thread);
    if (layers_.empty()) {
        for (int layer = 0; layer < int(program_.layers.size()); layer++)
            if (!run_layer(thread, layer)) return;
    } else {
        for (int layer : layers_)
            if (!run_layer(thread, layer)) return;
    }
    compute_output(thread);
}

bool Forward::run_layer(int thread, int layer) {
    if (thread == 0) current_layer_ = layer;
    State state{.thread = thread, .layer = layer};
    for (const Operation& operation : program_.layers[layer])
        std::visit([&](const auto& alternative) { apply(state, alternative); }, operation);
    end_layer(thread, layer);
    return stop_after_.load(std::memory_order_relaxed) != layer;
}

// Thread 0 may decide to stop after the layer: it says so before a barrier in it, and all look after its last one.
void Forward::meet(int thread, Stage stage) {
    if (thread == 0 && interrupted_ && current_layer_ >= 0) {
        const auto now = Clock::now();
        if (now - asked_ > kAskEvery) {
            asked_ = now;
            if (interrupted_()) stop_after_.store(current_layer_, std::memory_order_relaxed);
        }
    }
    pool_.barrier();
    if (thread == 0) {
        const auto now = Clock::now();
        model_.profile_[stage] += std::chrono::duration<double>(now - stage_start_).count();
        stage_start_ = now;
    }
}

void Forward::embed(int thread) {
    shares_.each(thread, int(rows_.size()), [&](int first, int last) {
        for (int row = first; row < last; row++) {
            float* x = buffers_.stream + size_t(row) * width_;
            read_row(program_.embedding, rows_[row].token, x);
            if (program_.embedding_scale != 1) kernels_.scale(x, width_, program_.embedding_scale);
        }
    });
    meet(thread, kPrepare);
}

// The stream of a program that begins with Fuse.
void Forward::begin(int thread, const Beginnings& beginnings) {
    const int count = int(rows_.size());
    if (int(beginnings.fused.size()) < count) {
        shares_.each(thread, count, [&](int first, int last) {
            std::memcpy(buffers_.stream + size_t(first) * width_, beginnings.states + size_t(first) * width_,
                        size_t(last - first) * width_ * sizeof(float));
        });
        meet(thread, kPrepare);
    }
    if (!beginnings.fused.empty()) fuse(thread, beginnings);
    const Normalise& after = program_.fuse.after;
    if (after.weight.empty()) return;
    shares_.each(thread, count, [&](int first, int last) {
        for (int row = first; row < last; row++) {
            float* x = buffers_.stream + size_t(row) * width_;
            kernels_.normalise(x, after.weight.data(), after.epsilon, width_, x);
        }
    });
    meet(thread, kPrepare);
}

void Forward::fuse(int thread, const Beginnings& beginnings) {
    const Matrix& matrix = program_.fuse.matrix;
    const Normalise& before = program_.fuse.before;
    const Activations x = buffers_.fused.view();
    const int count = int(beginnings.fused.size());
    shares_.each(thread, count, [&](int first, int last) {
        for (int i = first; i < last; i++) {
            const float* states = beginnings.hidden + size_t(i) * matrix.columns;
            const Activations out = x.from(i);
            if (before.weight.empty())
                std::memcpy(out.values, states, matrix.columns * sizeof(float));
            else
                kernels_.normalise(states, before.weight.data(), before.epsilon, matrix.columns, out.values);
            kernels_.quantise_part(out, 0, matrix.columns);
        }
    });
    meet(thread, kPrepare);
    float* scratch = buffers_.scratch[thread].product;
    shares_.each(thread, matrix.blocks(), [&](int first, int last) {
        for (int row = 0; row < count; row += kPanel) {
            const int rows = std::min(kPanel, count - row);
            for (int block = first; block < last; block++) {
                product(matrix, block, 1, x.from(row), rows, scratch, kChannels);
                for (int i = 0; i < rows; i++)
                    std::memcpy(buffers_.stream + size_t(beginnings.fused[row + i]) * width_ + block * kChannels,
                                scratch + i * kChannels, kChannels * sizeof(float));
            }
        }
    });
    meet(thread, kPrepare);
}

void Forward::end_layer(int thread, int layer) {
    // The stream changes next in a projection, which comes after a barrier.
    for (auto& [kept, values] : model_.hidden_)
        if (thread == 0 && kept == layer) std::memcpy(values->data(), buffers_.stream, values->size() * sizeof(float));
}

void Forward::compute_output(int thread) {
    const int count = int(outputs_.size());
    if (thread == 0) current_layer_ = kNever;
    if (count == 0) return;
    const Activations x = normalised(thread, program_.output_norm, &outputs_, count);
    shares_.each(thread, program_.output.blocks(), [&](int first, int last) {
        for (int row = 0; row < count; row += kPanel)
            product(program_.output, first, last - first, x.from(row), std::min(kPanel, count - row),
                    buffers_.logits + size_t(row) * buffers_.logits_stride + first * kChannels, buffers_.logits_stride);
    });
    meet(thread, kOutput);
}

// ---- Operations ----------------------------------------------------------------------------------------------------

// What an operation reads that comes after a norm.
Activations Forward::input(const State& state) {
    const int count = int(rows_.size());
    if (!state.join) return normalised(state.thread, *state.norm, nullptr, count);
    const Normalise &embedding = state.join->embedding, &stream = state.join->stream;
    return prepared(state.thread, count, 2 * width_, [&](int row, float* out) {
        const float* x = buffers_.stream + size_t(row) * width_;
        read_embedding(row, embedding, out);
        if (stream.weight.empty())
            std::memcpy(out + width_, x, width_ * sizeof(float));
        else
            kernels_.normalise(x, stream.weight.data(), stream.epsilon, width_, out + width_);
    });
}

void Forward::read_embedding(int row, const Normalise& norm, float* out) {
    const float* token = beginnings_->embeddings + size_t(row) * width_;
    kernels_.normalise(token, norm.weight.data(), norm.epsilon, width_, out);
}

Activations Forward::normalised(int thread, const Normalise& norm, const std::vector<int>* rows, int count) {
    return prepared(thread, count, width_, [&](int i, float* out) {
        const float* row = buffers_.stream + size_t(rows ? (*rows)[i] : i) * width_;
        kernels_.normalise(row, norm.weight.data(), norm.epsilon, width_, out);
    });
}

// Rows that write(row, values) makes. Few rows every thread computes for itself, as that is sooner done than meeting
// the others.
template <class Write>
Activations Forward::prepared(int thread, int count, int columns, Write&& write) {
    const bool alone = count <= kPrivateRows;
    Activations target = alone ? buffers_.scratch[thread].normalised.view() : buffers_.normalised.view();
    target.columns = columns;
    const auto compute = [&](int first, int last) {
        for (int i = first; i < last; i++) {
            const Activations out = target.from(i);
            write(i, out.values);
            kernels_.quantise_part(out, 0, columns);
        }
    };
    if (alone) {
        compute(0, count);
    } else {
        shares_.each(thread, count, compute);
        meet(thread, kPrepare);
    }
    return target;
}

// `out` [rows, stride]
void Forward::product(const Matrix& matrix, int first_block, int blocks, const Activations& x, int rows, float* out,
                      int stride) {
    for (int block = 0; block < blocks; block++)
        kernels_.product(matrix, first_block + block, x, rows, out + block * kChannels, stride);
}

// Calls body(first row, rows) for panels of rows that stay in a core's cache while weights pass by.
template <class Body>
void Forward::each_panel(Body&& body) {
    const int count = int(rows_.size());
    for (int row = 0; row < count; row += kPanel) body(row, std::min(kPanel, count - row));
}

void Forward::apply(State& state, const Attend& operation) {
    const int thread = state.thread;
    const Activations x = input(state);
    const int units = program_.heads + 2 * program_.key_value_heads;
    shares_.each(thread, units, [&](int first, int last) {
        each_panel([&](int row, int rows) {
            for (int unit = first; unit < last; unit++)
                project_head(operation, unit, x, row, rows, state.layer, buffers_.scratch[thread]);
        });
    });
    meet(thread, kQueryKeyValue);
    Attention& attention = attention_over(operation.window);
    shares_.each(thread, attention.units(), [&](int first, int last) {
        for (int unit = first; unit < last; unit++) attention.compute(unit, state.layer, buffers_.scratch[thread]);
    });
    meet(thread, kAttention);
    state.produced = buffers_.attended.view();
}

// One head of queries, of keys or of values, turned and put where attention reads it.
void Forward::project_head(const Attend& operation, int unit, const Activations& x, int first_row, int rows, int layer,
                           Scratch& scratch) {
    const int heads = program_.heads, key_heads = program_.key_value_heads;
    const bool is_query = unit < heads, is_key = !is_query && unit < heads + key_heads;
    const int head = is_query ? unit : is_key ? unit - heads : unit - heads - key_heads;
    const Rotary& rotary = program_.rotaries[operation.rotary];
    const int first_angle = program_.angles_before(operation.rotary);
    project(is_query ? operation.query
            : is_key ? operation.key
                     : operation.value,
            head, x.from(first_row), rows, scratch.product);
    for (int i = 0; i < rows; i++) {
        float* numbers = scratch.product + size_t(i) * head_size_;
        const int row = first_row + i;
        if (is_query) {
            rotate(numbers, row, rotary, first_angle, operation.scale);
            std::memcpy(buffers_.queries + (size_t(row) * heads + head) * head_size_, numbers,
                        head_size_ * sizeof(float));
        } else if (is_key) {
            rotate(numbers, row, rotary, first_angle, 1.0f);
            store_key(row, layer, head, numbers, scratch.half);
        } else {
            store_value(row, layer, head, numbers);
        }
    }
}

// One head of some rows: `out` [rows, head_size]
void Forward::project(const Heads& heads, int head, const Activations& x, int rows, float* out) {
    const int blocks = head_size_ / kChannels;
    product(heads.matrix, head * blocks, blocks, x, rows, out, head_size_);
    float* end = out + size_t(rows) * head_size_;
    if (!heads.bias.empty())
        for (float* row = out; row < end; row += head_size_)
            kernels_.add(heads.bias.data() + head * head_size_, head_size_, row);
    if (!heads.norm.weight.empty())
        for (float* row = out; row < end; row += head_size_)
            kernels_.normalise(row, heads.norm.weight.data(), heads.norm.epsilon, head_size_, row);
}

void Forward::rotate(float* head, int row, const Rotary& rotary, int first_angle, float scale) {
    const int size = rotary.size();
    const size_t place = size_t(row) * program_.angles() + first_angle;
    kernels_.rotate(head, buffers_.cosines + place, buffers_.sines + place, size, rotary.halves, scale);
    if (size < head_size_) kernels_.scale(head + size, head_size_ - size, scale);
}

void Forward::store_key(int row, int layer, int head, const float* key, uint16_t* half) {
    const int slot = rows_[row].slot, place = slot % kKeyBlock;
    uint16_t* column = cache_.keys(block_of(rows_[row].session, layer, slot), layer, head) +
                       place / kChannels * kChannels * head_size_ + place % kChannels;
    kernels_.to_half(key, head_size_, half);
    for (int d = 0; d < head_size_; d++) column[d * kChannels] = half[d];
}

void Forward::store_value(int row, int layer, int head, const float* value) {
    const int slot = rows_[row].slot;
    kernels_.to_half(
        value, head_size_,
        cache_.values(block_of(rows_[row].session, layer, slot), layer, head) + slot % kKeyBlock * head_size_);
}

void Forward::apply(State& state, const ReadEmbedding& operation) {
    state.produced = prepared(state.thread, int(rows_.size()), width_,
                              [&](int row, float* out) { read_embedding(row, operation.norm, out); });
}

void Forward::apply(State& state, const AddProjected& projection) {
    const Matrix& matrix = projection.matrix;
    const Activations x = state.produced;
    float* scratch = buffers_.scratch[state.thread].product;
    shares_.each(state.thread, matrix.blocks(), [&](int first, int last) {
        each_panel([&](int row, int rows) {
            for (int block = first; block < last; block++) {
                product(matrix, block, 1, x.from(row), rows, scratch, kChannels);
                for (int i = 0; i < rows; i++)
                    kernels_.add(scratch + i * kChannels, kChannels,
                                 buffers_.stream + size_t(row + i) * width_ + block * kChannels);
            }
        });
    });
    meet(state.thread, kProjection);
}

// A row is normalised when all of it is there.
void Forward::apply(State& state, const AddNormalised& projection) {
    const Activations x = state.produced;
    const Normalise& norm = projection.norm;
    float* projected = buffers_.normalised.view().values;  // read, and free until the next norm
    shares_.each(state.thread, projection.matrix.blocks(), [&](int first, int last) {
        each_panel([&](int row, int rows) {
            product(projection.matrix, first, last - first, x.from(row), rows,
                    projected + size_t(row) * width_ + first * kChannels, width_);
        });
    });
    meet(state.thread, kProjection);
    shares_.each(state.thread, int(rows_.size()), [&](int first, int last) {
        for (int row = first; row < last; row++) {
            float* added = projected + size_t(row) * width_;
            kernels_.normalise(added, norm.weight.data(), norm.epsilon, width_, added);
            kernels_.add(added, width_, buffers_.stream + size_t(row) * width_);
        }
    });
    meet(state.thread, kPrepare);
}

// 32 channels at a time: one group of what the next projection reads.
void Forward::apply(State& state, const GatedUnit& unit) {
    constexpr int kBlocks = kGroup / kChannels;
    const Activations x = input(state);
    Activations out = buffers_.gated.view();
    out.columns = unit.gate.rows;
    float* gate = buffers_.scratch[state.thread].product;
    float* up = gate + kPanel * kGroup;
    const auto activate = unit.activation == Activation::kGelu ? kernels_.gate_gelu : kernels_.gate_silu;
    shares_.each(state.thread, unit.gate.rows / kGroup, [&](int first, int last) {
        each_panel([&](int row, int rows) {
            for (int group = first; group < last; group++) {
                product(unit.gate, group * kBlocks, kBlocks, x.from(row), rows, gate, kGroup);
                product(unit.up, group * kBlocks, kBlocks, x.from(row), rows, up, kGroup);
                for (int i = 0; i < rows; i++) {
                    const Activations target = out.from(row + i);
                    activate(gate + i * kGroup, up + i * kGroup, kGroup, target.values + group * kGroup);
                    kernels_.quantise_part(target, group * kGroup, kGroup);
                }
            }
        });
    });
    meet(state.thread, kGatedUnit);
    state.produced = out;
}

Attention& Forward::attention_over(int window) {
    return *std::find_if(attentions_.begin(), attentions_.end(),
                         [=](const Attention& one) { return one.window() == window; });
}

}  // namespace slipstream
