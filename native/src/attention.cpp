#include "attention.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace slipstream {
namespace {

// Blocks of the cache lie far apart: the hardware does not see the next one coming.
void prefetch_block(const uint16_t* block, int head_size) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(block);
    for (int line = 0; line < kKeyBlock * head_size * int(sizeof(uint16_t)); line += 64)
        __builtin_prefetch(bytes + line, 0, 2);
}

}  // namespace

// ---- How rows are shared out ---------------------------------------------------------------------------------------

Attention::Attention(Model& model, const std::vector<Row>& rows, const std::vector<Span>& spans, int window)
    : program_(model.program_),
      kernels_(model.kernels_),
      cache_(model.cache_),
      buffers_(*model.buffers_),
      rows_(rows),
      window_(window),
      group_(program_.group()),
      head_size_(program_.head_size) {
    for (const Span& span : spans) add_tiles(span);
    add_units(model.pool_->threads(), most_partials(program_, model.limits_, model.pool_->threads()));
}

void Attention::add_tiles(const Span& span) {
    const int step = tile_rows(program_), base = cache_.at(span.session).used();
    for (int row = 0; row < span.rows; row += step) {
        Tile tile{span.session, span.first + row, std::min(step, span.rows - row), base,
                  span.rows,    span.tree,        std::numeric_limits<int>::max(), 0};
        for (int query = 0; query < tile.rows * group_; query += group_) {
            tile.first_chunk = std::min(tile.first_chunk, start(tile, query) / kChunk);
            tile.last_chunk = std::max(tile.last_chunk, (reach(tile, query) - 1) / kChunk + 1);
        }
        tiles_.push_back(tile);
    }
}

// Where tiles and heads do not keep all threads busy, the chunks of a tile are shared out too. The result is the same
// either way: chunks are merged in order.
void Attention::add_units(int threads, size_t most_partials) {
    const int heads = program_.key_value_heads;
    const bool share = int(tiles_.size()) * heads < kUnitsPerThread * threads;
    size_t numbers = 0;
    partial_starts_.assign(tiles_.size(), 0);
    waiting_ = std::make_unique<std::atomic<int>[]>(tiles_.size() * heads);
    for (int t = 0; t < int(tiles_.size()); t++) {
        const Tile& tile = tiles_[t];
        const size_t wanted = size_t(heads) * tile.chunks() * tile.rows * group_ * (head_size_ + 2);
        const bool shared = share && tile.chunks() > 1 && numbers + wanted <= most_partials;
        partial_starts_[t] = numbers;
        if (shared) numbers += wanted;
        for (int head = 0; head < heads; head++) {
            waiting_[t * heads + head] = tile.chunks();
            if (!shared) units_.push_back({t, head, tile.first_chunk, tile.last_chunk, false});
            for (int chunk = tile.first_chunk; shared && chunk < tile.last_chunk; chunk++)
                units_.push_back({t, head, chunk, chunk + 1, true});
        }
    }
    if (buffers_.partials.size() < numbers) buffers_.partials.resize(numbers);
}

// ---- A unit --------------------------------------------------------------------------------------------------------

// Softmax over all that a row sees, chunk by chunk from position 0, each chunk with a maximum of its own; chunks are
// merged in order. Neither the tile nor the other chunks' threads leave a trace in a row.
void Attention::compute(int index, int layer, Scratch& scratch) {
    const Unit& unit = units_[index];
    const Tile& tile = tiles_[unit.tile];
    const Work work{tile, unit.head, layer, cache_.blocks(tile.session, layer), scratch};
    const int queries = tile.rows * group_, numbers = head_size_;
    for (int i = 0; i < tile.rows; i++)  // the heads of a group lie beside each other
        std::memcpy(scratch.queries + size_t(i) * group_ * numbers,
                    buffers_.queries + (size_t(tile.first + i) * program_.heads + unit.head * group_) * numbers,
                    size_t(group_) * numbers * sizeof(float));
    if (tile.tree && unit.last_chunk * kChunk > tile.base) score_tail(work);
    const Partial all = scratch.all(queries, numbers), one = scratch.chunk(queries);
    for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
        const bool is_first = chunk == tile.first_chunk;
        attend(work, chunk, unit.shared ? partial(unit.tile, unit.head, chunk) : is_first ? all : one);
        if (!unit.shared && !is_first) merge(tile, chunk, one, all);
    }
    if (!unit.shared) return finish(tile, unit.head, all);
    // Acquire and release: whoever finishes last sees what the others wrote, and leaves the counter as it was.
    std::atomic<int>& waiting = waiting_[unit.tile * program_.key_value_heads + unit.head];
    if (waiting.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    waiting.store(tile.chunks(), std::memory_order_relaxed);
    const Partial first = partial(unit.tile, unit.head, tile.first_chunk);
    for (int chunk = tile.first_chunk + 1; chunk < tile.last_chunk; chunk++)
        merge(tile, chunk, partial(unit.tile, unit.head, chunk), first);
    finish(tile, unit.head, first);
}

// Maximum, sum and weighted values of one chunk, for the queries that see any of it.
void Attention::attend(const Work& work, int chunk, const Partial& out) {
    const Tile& tile = work.tile;
    Scratch& scratch = work.scratch;
    const int begin = chunk * kChunk, size = head_size_;
    int first = 0, last = tile.rows * group_;
    if (!tile.tree) {  // a chain's later rows see more, and their windows begin later
        while (seen(tile, first, chunk).to <= 0) first += group_;
        while (seen(tile, last - 1, chunk).from >= kChunk) last -= group_;
    }
    // What all of them see is mixed together, the rest query by query: no sum takes in what its row does not see.
    Range scored{kChunk, 0}, together{0, kChunk};
    for (int query = first; query < last; query += group_) {
        const Range range = seen(tile, query, chunk);
        if (range.empty()) continue;
        scored = {std::min(scored.from, range.from), std::max(scored.to, range.to)};
        together = {std::max(together.from, range.from), std::min(together.to, range.to)};
    }
    if (scored.empty()) return;
    if (tile.tree) {  // the positions of its own rows are not their slots
        const int before = std::clamp(tile.base - begin, 0, kChunk);
        scored.to = std::min(scored.to, before);
        together.to = std::min(together.to, before);
    }
    for (int position = scored.from / kKeyBlock * kKeyBlock; position < scored.to; position += kKeyBlock) {
        const bool is_last = position + kKeyBlock >= scored.to;
        prefetch_block(is_last ? values(work, begin + scored.from) : keys(work, begin + position + kKeyBlock), size);
        kernels_.scores(keys(work, begin + position), size, scratch.queries + first * size, last - first,
                        scratch.scores + first * kChunk + position, kChunk);
    }
    for (int query = first; query < last; query++)
        if (const Range range = seen(tile, query, chunk); !range.empty()) soften(work, chunk, query, range, out);
    for (int query = first; query < last; query++) {
        const Range range = seen(tile, query, chunk);
        mix_one_by_one(work, chunk, query, {range.from, std::min(range.to, together.from)}, out);
    }
    for (int position = together.from, next; position < together.to; position = next) {
        next = std::min(position / kKeyBlock * kKeyBlock + kKeyBlock, together.to);
        if (next < together.to) prefetch_block(values(work, begin + next), size);
        if (next == together.to && begin + kChunk < tile.base) prefetch_block(keys(work, begin + kChunk), size);
        kernels_.mix(values(work, begin + position), next - position, size, scratch.scores + first * kChunk + position,
                     kChunk, last - first, out.mixed + first * size);
    }
    for (int query = first; query < last; query++) {
        const Range range = seen(tile, query, chunk);
        mix_one_by_one(work, chunk, query, {std::max({range.from, together.from, together.to}), range.to}, out);
    }
}

// The weights of what a query sees. Vectors are whole: a part of one before the window weighs as good as nothing.
void Attention::soften(const Work& work, int chunk, int query, Range range, const Partial& out) {
    float* scores = work.scratch.scores + query * kChunk;
    if (work.tile.tree) {
        trace(work.tile, query, work.scratch.path);
        gather_tail(work, query, chunk * kChunk, range.to);
    }
    const int aligned = range.from / kChannels * kChannels;
    std::fill(scores + aligned, scores + range.from, -std::numeric_limits<float>::infinity());
    out.sum[query] = kernels_.soften(scores + aligned, range.to - aligned, &out.maximum[query]);
    std::memset(out.mixed + query * head_size_, 0, head_size_ * sizeof(float));
}

// Adds the values of a range to one query, after the same of the other queries of its row.
void Attention::mix_one_by_one(const Work& work, int chunk, int query, Range range, const Partial& out) {
    const Tile& tile = work.tile;
    int* path = work.scratch.path;
    if (range.empty()) return;
    if (tile.tree && query % group_ == 0) trace(tile, query, path);
    for (int i = range.from; i < range.to; i++) {
        const int position = chunk * kChunk + i;
        const int slot = tile.tree && position >= tile.base ? path[position - tile.base] : position;
        kernels_.mix(values(work, slot), 1, head_size_, work.scratch.scores + query * kChunk + i, kChunk, 1,
                     out.mixed + query * head_size_);
    }
}

// The slots of a row's own path, from its first ancestor in this forward to itself: [position - base].
void Attention::trace(const Tile& tile, int query, int* path) const {
    for (int row = tile.first + query / group_; row >= 0; row = rows_[row].parent)
        path[rows_[row].position - tile.base] = rows_[row].slot;
}

// A tree's own rows, in the order of their slots; each row picks its ancestors from them.
void Attention::score_tail(const Work& work) {
    const Tile& tile = work.tile;
    Scratch& scratch = work.scratch;
    const int first = tile.base / kKeyBlock, last = (tile.base + tile.own - 1) / kKeyBlock;
    for (int block = first; block <= last; block++)
        kernels_.scores(keys(work, block * kKeyBlock), head_size_, scratch.queries, tile.rows * group_,
                        scratch.tail + (block - first) * kKeyBlock, scratch.tail_stride);
}

void Attention::gather_tail(const Work& work, int query, int begin, int count) {
    const Tile& tile = work.tile;
    Scratch& scratch = work.scratch;
    const int first_slot = tile.base / kKeyBlock * kKeyBlock;
    const float* tail = scratch.tail + size_t(query) * scratch.tail_stride;
    for (int position = std::max(begin, tile.base); position < begin + count; position++)
        scratch.scores[query * kChunk + position - begin] = tail[scratch.path[position - tile.base] - first_slot];
}

// all = all and chunk `chunk`, for the rows that see any of it.
void Attention::merge(const Tile& tile, int chunk, const Partial& one, const Partial& all) {
    for (int query = 0; query < tile.rows * group_; query++) {
        if (seen(tile, query, chunk).empty()) continue;
        float* mixed = all.mixed + query * head_size_;
        const float* added = one.mixed + query * head_size_;
        if (start(tile, query) / kChunk == chunk) {  // its first
            all.maximum[query] = one.maximum[query];
            all.sum[query] = one.sum[query];
            std::copy(added, added + head_size_, mixed);
            continue;
        }
        const float maximum = std::max(all.maximum[query], one.maximum[query]);
        const float before = std::exp(all.maximum[query] - maximum), now = std::exp(one.maximum[query] - maximum);
        all.maximum[query] = maximum;
        all.sum[query] = all.sum[query] * before + one.sum[query] * now;
        for (int d = 0; d < head_size_; d++) mixed[d] = mixed[d] * before + added[d] * now;
    }
}

void Attention::finish(const Tile& tile, int head, const Partial& all) {
    const Activations attended = buffers_.attended.view();
    for (int query = 0; query < tile.rows * group_; query++) {
        const Activations row = attended.from(tile.first + query / group_);
        const int first = (head * group_ + query % group_) * head_size_;
        const float* mixed = all.mixed + query * head_size_;
        for (int d = 0; d < head_size_; d++) row.values[first + d] = mixed[d] / all.sum[query];
        kernels_.quantise_part(row, first, head_size_);
    }
}

Partial Attention::partial(int tile, int head, int chunk) {
    const int queries = tiles_[tile].rows * group_;
    const size_t numbers = size_t(queries) * (head_size_ + 2);
    const size_t index = size_t(head) * tiles_[tile].chunks() + chunk - tiles_[tile].first_chunk;
    return partial_at(buffers_.partials.data() + partial_starts_[tile] + index * numbers, queries);
}

}  // namespace slipstream
