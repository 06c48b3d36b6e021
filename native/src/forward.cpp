#include "forward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace slipstream {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(50);
// Blocks of the cache lie far apart: the hardware does not see the next one coming.
void prefetch_block(const uint16_t* block, int head_size) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(block);
    for (int line = 0; line < kKeyBlock * head_size * int(sizeof(uint16_t)); line += 64)
        __builtin_prefetch(bytes + line, 0, 2);
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

}  // namespace

// ---- What is to be computed ----------------------------------------------------------------------------------------

Forward::Forward(Model& model, const std::vector<Segment>& segments, const std::vector<int>& layers,
                 const std::vector<int>& hidden, const std::function<bool()>& interrupted)
    : model_(model),
      program_(model.program_),
      kernels_(model.kernels_),
      pool_(*model.pool_),
      shares_(pool_.shares()),
      cache_(model.cache_),
      buffers_(*model.buffers_),
      layers_(layers),
      interrupted_(interrupted),
      group_(program_.group()),
      head_size_(program_.head_size),
      width_(program_.width) {
    for (const Segment& segment : segments) add_rows(segment);
    for (int layer : hidden)
        model_.hidden_.emplace_back(layer, std::make_shared<std::vector<float>>(rows_.size() * width_));
    add_units();
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
    add_tiles(segment.session, first, count, tree);
}

void Forward::add_tiles(int session, int first, int rows, bool tree) {
    const int step = tile_rows(program_), base = cache_.at(session).used();
    for (int row = 0; row < rows; row += step) {
        Tile tile{session, first + row, std::min(step, rows - row), base, rows, tree, 0};
        for (int i = 0; i < tile.rows; i++)
            tile.chunks = std::max(tile.chunks, divide_up(rows_[tile.first + i].position + 1, kChunk));
        tiles_.push_back(tile);
    }
}

// Where tiles and heads do not keep all threads busy, the chunks of a tile are shared out too. The result is the same
// either way: chunks are merged in order.
void Forward::add_units() {
    const int heads = program_.key_value_heads;
    const bool share = int(tiles_.size()) * heads < kUnitsPerThread * pool_.threads();
    const size_t most = most_partials(program_, model_.limits_, pool_.threads());
    size_t numbers = 0;
    partial_starts_.assign(tiles_.size(), 0);
    waiting_ = std::make_unique<std::atomic<int>[]>(tiles_.size() * heads);
    for (int t = 0; t < int(tiles_.size()); t++) {
        const Tile& tile = tiles_[t];
        const size_t wanted = size_t(heads) * tile.chunks * tile.rows * group_ * (head_size_ + 2);
        const bool shared = share && tile.chunks > 1 && numbers + wanted <= most;
        partial_starts_[t] = numbers;
        if (shared) numbers += wanted;
        for (int head = 0; head < heads; head++) {
            waiting_[t * heads + head] = tile.chunks;
            if (!shared) units_.push_back({t, head, 0, tile.chunks, false});
            for (int chunk = 0; shared && chunk < tile.chunks; chunk++)
                units_.push_back({t, head, chunk, chunk + 1, true});
        }
    }
    if (buffers_.partials.size() < numbers) buffers_.partials.resize(numbers);
}

void Forward::compute_rotary() {
    const Rotary& rotary = program_.rotary;
    const int size = rotary.size(), pairs = size / 2;
    for (size_t row = 0; row < rows_.size(); row++) {
        float* cosine = buffers_.cosines + row * size;
        float* sine = buffers_.sines + row * size;
        for (int i = 0; i < pairs; i++) {
            const double angle = double(rows_[row].position) * double(rotary.frequencies[i]);
            const int one = rotary.halves ? i : 2 * i, other = rotary.halves ? i + pairs : 2 * i + 1;
            cosine[one] = cosine[other] = float(std::cos(angle));
            sine[other] = float(std::sin(angle));
            sine[one] = -sine[other];
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
    State state{thread, layer, nullptr, {}};
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
        for (int row = first; row < last; row++)
            read_row(program_.embedding, rows_[row].token, buffers_.stream + size_t(row) * width_);
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

// The normalised rows. Few rows every thread computes for itself, as that is sooner done than meeting the others.
Activations Forward::normalised(int thread, const Normalise& norm, const std::vector<int>* rows, int count) {
    const bool alone = count <= kPrivateRows;
    const Activations target = alone ? buffers_.scratch[thread].normalised.view() : buffers_.normalised.view();
    const auto compute = [&](int first, int last) {
        for (int i = first; i < last; i++) {
            const float* row = buffers_.stream + size_t(rows ? (*rows)[i] : i) * width_;
            const Activations out = target.from(i);
            kernels_.normalise(row, norm.weight.data(), norm.epsilon, width_, out.values);
            quantise(out, 0, width_);
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

// Both forms always: the codes cost little beside the product that reads either.
void Forward::quantise(const Activations& row, int first, int count) {
    kernels_.quantise(row.values + first, count, row.from(0, first));
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
    const Activations x = normalised(thread, *state.norm, nullptr, int(rows_.size()));
    const int units = program_.heads + 2 * program_.key_value_heads;
    shares_.each(thread, units, [&](int first, int last) {
        each_panel([&](int row, int rows) {
            for (int unit = first; unit < last; unit++)
                project_head(operation, unit, x, row, rows, state.layer, buffers_.scratch[thread]);
        });
    });
    meet(thread, kQueryKeyValue);
    shares_.each(thread, int(units_.size()), [&](int first, int last) {
        for (int unit = first; unit < last; unit++) attend(units_[unit], state.layer, buffers_.scratch[thread]);
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
    const Matrix& matrix = is_query ? operation.query : is_key ? operation.key : operation.value;
    const int blocks = head_size_ / kChannels;
    product(matrix, head * blocks, blocks, x.from(first_row), rows, scratch.product, head_size_);
    for (int i = 0; i < rows; i++) {
        float* numbers = scratch.product + size_t(i) * head_size_;
        const int row = first_row + i;
        if (is_query) {
            rotate(numbers, row, operation.scale);
            std::memcpy(buffers_.queries + (size_t(row) * heads + head) * head_size_, numbers,
                        head_size_ * sizeof(float));
        } else if (is_key) {
            rotate(numbers, row, 1.0f);
            store_key(row, layer, head, numbers, scratch.half);
        } else {
            store_value(row, layer, head, numbers);
        }
    }
}

void Forward::rotate(float* head, int row, float scale) {
    const int size = program_.rotary.size();
    const size_t place = size_t(row) * size;
    kernels_.rotate(head, buffers_.cosines + place, buffers_.sines + place, size, program_.rotary.halves, scale);
    if (size < head_size_) kernels_.scale(head + size, head_size_ - size, scale);
}

void Forward::store_key(int row, int layer, int head, const float* key, uint16_t* half) {
    const int slot = rows_[row].slot, place = slot % kKeyBlock;
    uint16_t* column = cache_.keys(block_of(rows_[row].session, slot), layer, head) +
                       place / kChannels * kChannels * head_size_ + place % kChannels;
    kernels_.to_half(key, head_size_, half);
    for (int d = 0; d < head_size_; d++) column[d * kChannels] = half[d];
}

void Forward::store_value(int row, int layer, int head, const float* value) {
    const int slot = rows_[row].slot;
    kernels_.to_half(value, head_size_,
                     cache_.values(block_of(rows_[row].session, slot), layer, head) + slot % kKeyBlock * head_size_);
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

// 32 channels at a time: one group of what the next projection reads.
void Forward::apply(State& state, const GatedUnit& unit) {
    constexpr int kBlocks = kGroup / kChannels;
    const Activations x = normalised(state.thread, *state.norm, nullptr, int(rows_.size()));
    Activations out = buffers_.gated.view();
    out.columns = unit.gate.rows;
    float* gate = buffers_.scratch[state.thread].product;
    float* up = gate + kPanel * kGroup;
    shares_.each(state.thread, unit.gate.rows / kGroup, [&](int first, int last) {
        each_panel([&](int row, int rows) {
            for (int group = first; group < last; group++) {
                product(unit.gate, group * kBlocks, kBlocks, x.from(row), rows, gate, kGroup);
                product(unit.up, group * kBlocks, kBlocks, x.from(row), rows, up, kGroup);
                for (int i = 0; i < rows; i++) {
                    const Activations target = out.from(row + i);
                    kernels_.gate(gate + i * kGroup, up + i * kGroup, kGroup, target.values + group * kGroup);
                    quantise(target, group * kGroup, kGroup);
                }
            }
        });
    });
    meet(state.thread, kGatedUnit);
    state.produced = out;
}

// ---- Attention -----------------------------------------------------------------------------------------------------

// Softmax over all visible positions, chunk by chunk from position 0, each chunk with a maximum of its own; chunks are
// merged in order. Neither the tile nor the other chunks' threads leave a trace in a row.
void Forward::attend(const Unit& unit, int layer, Scratch& scratch) {
    const Tile& tile = tiles_[unit.tile];
    const int queries = tile.rows * group_, numbers = head_size_;
    for (int i = 0; i < tile.rows; i++)  // the heads of a group lie beside each other
        std::memcpy(scratch.queries + size_t(i) * group_ * numbers,
                    buffers_.queries + (size_t(tile.first + i) * program_.heads + unit.head * group_) * numbers,
                    size_t(group_) * numbers * sizeof(float));
    if (tile.tree && unit.last_chunk * kChunk > tile.base) score_tail(tile, unit.head, layer, scratch);
    const Partial all = scratch.all(queries, numbers), one = scratch.chunk(queries);
    for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
        const Partial target = unit.shared ? partial(unit.tile, unit.head, chunk) : chunk == 0 ? all : one;
        attend_chunk(tile, unit.head, chunk, layer, scratch, target);
        if (!unit.shared && chunk > 0) merge(tile, chunk, one, all);
    }
    if (!unit.shared) return finish(tile, unit.head, all);
    // Acquire and release: whoever finishes last sees what the others wrote, and leaves the counter as it was.
    std::atomic<int>& waiting = waiting_[unit.tile * program_.key_value_heads + unit.head];
    if (waiting.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    waiting.store(tile.chunks, std::memory_order_relaxed);
    const Partial first = partial(unit.tile, unit.head, 0);
    for (int chunk = 1; chunk < tile.chunks; chunk++) merge(tile, chunk, partial(unit.tile, unit.head, chunk), first);
    finish(tile, unit.head, first);
}

// Maximum, sum and weighted values of one chunk, for the queries that reach it.
void Forward::attend_chunk(const Tile& tile, int head, int chunk, int layer, Scratch& scratch, const Partial& out) {
    const int begin = chunk * kChunk, size = head_size_, queries = tile.rows * group_;
    const auto& blocks = cache_.at(tile.session).blocks;
    const auto visible = [&](int query) { return std::min(reach(tile, query) - begin, kChunk); };
    // A chain's later rows see more, and its positions are its slots. Of a tree all rows see what was there before,
    // and the rest is taken row by row.
    int first = 0;
    if (!tile.tree)
        while (visible(first) <= 0) first += group_;
    const int together = tile.tree ? std::clamp(tile.base - begin, 0, kChunk) : visible(first);
    const int scored = tile.tree ? together : visible(queries - 1);
    const auto keys_at = [&](int position) { return cache_.keys(blocks[(begin + position) / kKeyBlock], layer, head); };
    const auto values_at = [&](int position) {
        return cache_.values(blocks[(begin + position) / kKeyBlock], layer, head);
    };
    for (int position = 0; position < scored; position += kKeyBlock) {
        const bool last = position + kKeyBlock >= scored;
        prefetch_block(last ? values_at(0) : keys_at(position + kKeyBlock), size);
        kernels_.scores(keys_at(position), size, scratch.queries + first * size, queries - first,
                        scratch.scores + first * kChunk + position, kChunk);
    }
    for (int query = first; query < queries; query++) {
        const int count = visible(query);
        if (count <= 0) continue;
        float* scores = scratch.scores + query * kChunk;
        if (tile.tree) {
            trace(tile, query, scratch.path);
            gather_tail(tile, query, begin, count, scratch);
        }
        out.sum[query] = kernels_.soften(scores, count, &out.maximum[query]);
        std::memset(out.mixed + query * size, 0, size * sizeof(float));
    }
    for (int position = 0; position < together; position += kKeyBlock) {
        const bool last = position + kKeyBlock >= together;
        if (!last) prefetch_block(values_at(position + kKeyBlock), size);
        if (last && begin + kChunk < tile.base) prefetch_block(keys_at(kChunk), size);
        kernels_.mix(values_at(position), std::min(kKeyBlock, together - position), size,
                     scratch.scores + first * kChunk + position, kChunk, queries - first, out.mixed + first * size);
    }
    for (int query = first; query < queries; query++) {
        if (tile.tree && query % group_ == 0) trace(tile, query, scratch.path);
        for (int position = together; position < visible(query); position++) {
            const int slot = tile.tree ? scratch.path[begin + position - tile.base] : begin + position;
            kernels_.mix(cache_.values(blocks[slot / kKeyBlock], layer, head) + slot % kKeyBlock * size, 1, size,
                         scratch.scores + query * kChunk + position, kChunk, 1, out.mixed + query * size);
        }
    }
}

// The slots of a row's own path, from its first ancestor in this forward to itself: [position - base].
void Forward::trace(const Tile& tile, int query, int* path) const {
    for (int row = tile.first + query / group_; row >= 0; row = rows_[row].parent)
        path[rows_[row].position - tile.base] = rows_[row].slot;
}

// A tree's own rows, in the order of their slots; each row picks its ancestors from them.
void Forward::score_tail(const Tile& tile, int head, int layer, Scratch& scratch) {
    const auto& blocks = cache_.at(tile.session).blocks;
    const int first = tile.base / kKeyBlock, last = (tile.base + tile.own - 1) / kKeyBlock;
    for (int block = first; block <= last; block++)
        kernels_.scores(cache_.keys(blocks[block], layer, head), head_size_, scratch.queries, tile.rows * group_,
                        scratch.tail + (block - first) * kKeyBlock, scratch.tail_stride);
}

void Forward::gather_tail(const Tile& tile, int query, int begin, int count, Scratch& scratch) {
    const int first_slot = tile.base / kKeyBlock * kKeyBlock;
    const float* tail = scratch.tail + size_t(query) * scratch.tail_stride;
    for (int position = std::max(begin, tile.base); position < begin + count; position++)
        scratch.scores[query * kChunk + position - begin] = tail[scratch.path[position - tile.base] - first_slot];
}

// all = all and chunk `chunk`, for the rows that reach the chunk.
void Forward::merge(const Tile& tile, int chunk, const Partial& one, const Partial& all) {
    for (int query = 0; query < tile.rows * group_; query++) {
        if (reach(tile, query) <= chunk * kChunk) continue;
        const float maximum = std::max(all.maximum[query], one.maximum[query]);
        const float before = std::exp(all.maximum[query] - maximum), now = std::exp(one.maximum[query] - maximum);
        all.maximum[query] = maximum;
        all.sum[query] = all.sum[query] * before + one.sum[query] * now;
        float* mixed = all.mixed + query * head_size_;
        const float* added = one.mixed + query * head_size_;
        for (int d = 0; d < head_size_; d++) mixed[d] = mixed[d] * before + added[d] * now;
    }
}

void Forward::finish(const Tile& tile, int head, const Partial& all) {
    for (int query = 0; query < tile.rows * group_; query++) {
        const Activations row = buffers_.attended.view().from(tile.first + query / group_);
        const int first = (head * group_ + query % group_) * head_size_;
        const float* mixed = all.mixed + query * head_size_;
        for (int d = 0; d < head_size_; d++) row.values[first + d] = mixed[d] / all.sum[query];
        quantise(row, first, head_size_);
    }
}

Partial Forward::partial(int tile, int head, int chunk) {
    const int queries = tiles_[tile].rows * group_;
    const size_t numbers = size_t(queries) * (head_size_ + 2);
    float* start =
        buffers_.partials.data() + partial_starts_[tile] + (size_t(head) * tiles_[tile].chunks + chunk) * numbers;
    return partial_at(start, queries);
}

}  // namespace slipstream
