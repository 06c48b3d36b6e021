// One forward: what is to be computed, and the threads' walk through it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "buffers.hpp"
#include "model.hpp"

namespace slipstream {

class Forward {
   public:
    // Lays out rows, tiles and units. Throws std::logic_error for requests that cannot be.
    Forward(Model& model, const std::vector<Segment>& segments, const std::vector<int>& layers,
            const std::vector<int>& hidden, const std::function<bool()>& interrupted);

    // Throws Interrupted.
    void run();

   private:
    // A row of the forward. Its keys and values go to `slot`; it sees all positions up to its own.
    struct Row {
        int session;
        int token;
        int position;
        int slot;
        int parent;  // row, -1 for none in this forward
    };

    // Rows of one session that attend together.
    struct Tile {
        int session;
        int first;  // row
        int rows;
        int base;  // tokens in the cache before this forward
        int own;   // rows of the session in this forward
        bool tree;
        int chunks;  // the most that a row of it needs
    };

    // Chunks [first_chunk, last_chunk) of a tile for one key-value head.
    struct Unit {
        int tile;
        int head;
        int first_chunk;
        int last_chunk;
        bool shared;  // other units compute the other chunks; the last to finish merges
    };

    void add_rows(const Segment& segment);
    void add_tiles(int session, int first, int rows, bool tree);
    void add_units();
    void compute_rotary();

    void run_thread(int thread);
    bool run_layer(int thread, int layer);
    void embed(int thread);
    void end_layer(int thread, int layer);
    void compute_output(int thread);
    void meet(int thread, Stage stage);

    // The operations. Each ends with all threads at its end.
    struct State {
        int thread;
        int layer;
        const Normalise* norm = nullptr;
        Activations produced;
    };
    void apply(State& state, const Normalise& norm) { state.norm = &norm; }
    void apply(State& state, const Attend& operation);
    void apply(State& state, const AddProjected& projection);
    void apply(State& state, const GatedUnit& unit);

    Activations normalised(int thread, const Normalise& norm, const std::vector<int>* rows, int count);
    void quantise(const Activations& row, int first, int count);
    void product(const Matrix& matrix, int first_block, int blocks, const Activations& x, int rows, float* out,
                 int stride);
    template <class Body>
    void each_panel(Body&& body);
    void project_head(const Attend& operation, int unit, const Activations& x, int first_row, int rows, int layer,
                      Scratch& scratch);
    void rotate(float* head, int row, float scale);
    void store_key(int row, int layer, int head, const float* key, uint16_t* half);
    void store_value(int row, int layer, int head, const float* value);
    int block_of(int session, int slot) { return cache_.at(session).blocks[slot / kKeyBlock]; }

    void attend(const Unit& unit, int layer, Scratch& scratch);
    void attend_chunk(const Tile& tile, int head, int chunk, int layer, Scratch& scratch, const Partial& out);
    void score_tail(const Tile& tile, int head, int layer, Scratch& scratch);
    void gather_tail(const Tile& tile, int query, int begin, int count, Scratch& scratch);
    void merge(const Tile& tile, int chunk, const Partial& one, const Partial& all);
    void finish(const Tile& tile, int head, const Partial& all);
    Partial partial(int tile, int head, int chunk);
    // Positions that a query of the tile sees, and the slot of one of them.
    int reach(const Tile& tile, int query) const { return rows_[tile.first + query / group_].position + 1; }
    void trace(const Tile& tile, int query, int* path) const;

    Model& model_;
    const Program& program_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    Shares& shares_;
    Cache& cache_;
    Buffers& buffers_;
    const std::vector<int>& layers_;
    const std::function<bool()>& interrupted_;
    const int group_, head_size_, width_;

    std::vector<Row> rows_;
    std::vector<int> outputs_;  // rows with logits
    std::vector<Tile> tiles_;
    std::vector<Unit> units_;
    std::vector<size_t> partial_starts_;           // of tiles with shared units, in numbers
    std::unique_ptr<std::atomic<int>[]> waiting_;  // chunks of a tile's head that are not done

    static constexpr int kNever = -1;
    int current_layer_ = kNever;  // thread 0's
    std::atomic<int> stop_after_{kNever};
    std::chrono::steady_clock::time_point asked_, stage_start_;
};

}  // namespace slipstream
