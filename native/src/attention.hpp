// Attention of one forward over layers that see equally far: how rows are shared out, and what a thread does with its
// share.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "buffers.hpp"
#include "model.hpp"

namespace slipstream {

// A row of a forward. Its keys and values go to `slot`; it sees positions up to its own.
struct Row {
    int session;
    int token;
    int position;
    int slot;
    int parent;  // row, -1 for none in this forward
};

// Rows of a forward that are of one session.
struct Span {
    int session;
    int first;
    int rows;
    bool tree;
};

class Attention {
   public:
    // window: how many positions a row sees, the last of them its own; 0 for all
    Attention(Model& model, const std::vector<Row>& rows, const std::vector<Span>& spans, int window);

    int window() const { return window_; }
    int units() const { return int(units_.size()); }
    // Reads the layer's queries, keys and values, and writes heads of the attended rows.
    void compute(int unit, int layer, Scratch& scratch);

   private:
    // Rows of one session that attend together.
    struct Tile {
        int session;
        int first;  // row
        int rows;
        int base;  // tokens in the cache before this forward
        int own;   // rows of the session in this forward
        bool tree;
        int first_chunk;  // its rows see chunks [first_chunk, last_chunk)
        int last_chunk;
        int chunks() const { return last_chunk - first_chunk; }
    };

    // Chunks [first_chunk, last_chunk) of a tile for one key-value head.
    struct Unit {
        int tile;
        int head;
        int first_chunk;
        int last_chunk;
        bool shared;  // other units compute the other chunks; the last to finish merges
    };

    // What a thread is at: one key-value head of a tile in one layer.
    struct Work {
        const Tile& tile;
        int head;
        int layer;
        const std::vector<int>& blocks;  // the session's, in this layer
        Scratch& scratch;
    };

    // Positions of a chunk, counted from its first.
    struct Range {
        int from;
        int to;
        bool empty() const { return from >= to; }
    };

    void add_tiles(const Span& span);
    void add_units(int threads, size_t most_partials);

    void attend(const Work& work, int chunk, const Partial& out);
    void soften(const Work& work, int chunk, int query, Range range, const Partial& out);
    void mix_one_by_one(const Work& work, int chunk, int query, Range range, const Partial& out);
    void score_tail(const Work& work);
    void gather_tail(const Work& work, int query, int begin, int count);
    void merge(const Tile& tile, int chunk, const Partial& one, const Partial& all);
    void finish(const Tile& tile, int head, const Partial& all);
    Partial partial(int tile, int head, int chunk);
    void trace(const Tile& tile, int query, int* path) const;

    // Of the block that a slot lies in; the values of the slot itself.
    uint16_t* keys(const Work& work, int slot) const {
        return cache_.keys(work.blocks[slot / kKeyBlock], work.layer, work.head);
    }
    uint16_t* values(const Work& work, int slot) const {
        return cache_.values(work.blocks[slot / kKeyBlock], work.layer, work.head) + slot % kKeyBlock * head_size_;
    }

    // Positions [start, reach) are what a query of the tile sees.
    int reach(const Tile& tile, int query) const { return rows_[tile.first + query / group_].position + 1; }
    int start(const Tile& tile, int query) const { return window_ > 0 ? std::max(reach(tile, query) - window_, 0) : 0; }
    Range seen(const Tile& tile, int query, int chunk) const {
        const int begin = chunk * kChunk;
        return {std::max(start(tile, query) - begin, 0), std::min(reach(tile, query) - begin, kChunk)};
    }

    const Program& program_;
    const Kernels& kernels_;
    Cache& cache_;
    Buffers& buffers_;
    const std::vector<Row>& rows_;
    const int window_, group_, head_size_;

    std::vector<Tile> tiles_;
    std::vector<Unit> units_;
    std::vector<size_t> partial_starts_;           // of tiles with shared units, in numbers
    std::unique_ptr<std::atomic<int>[]> waiting_;  // chunks of a tile's head that are not done
};

}  // namespace slipstream
