// One forward: what is to be computed, and the threads' walk through it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

#include "attention.hpp"
#include "buffers.hpp"
#include "model.hpp"

namespace slipstream {

class Forward {
   public:
    // Lays out the rows. Throws std::logic_error for requests that cannot be.
    Forward(Model& model, const std::vector<Segment>& segments, const std::vector<int>& layers,
            const std::vector<int>& hidden, const std::function<bool()>& interrupted, const Beginnings* beginnings);

    // Throws Interrupted.
    void run();

   private:
    void add_rows(const Segment& segment);
    void compute_rotary();

    void run_thread(int thread);
    bool run_layer(int thread, int layer);
    void embed(int thread);
    void begin(int thread, const Beginnings& beginnings);
    void fuse(int thread, const Beginnings& beginnings);
    void end_layer(int thread, int layer);
    void compute_output(int thread);
    void meet(int thread, Stage stage);

    // The operations. Each ends with all threads at its end.
    struct State {
        int thread;
        int layer;
        const Normalise* norm = nullptr;  // what the next operation reads: the stream through this norm, or joined
        const Join* join = nullptr;
        Activations produced;
    };
    void apply(State& state, const Normalise& norm) { state.norm = &norm, state.join = nullptr; }
    void apply(State& state, const Join& join) { state.join = &join; }
    void apply(State& state, const Attend& operation);
    void apply(State& state, const ReadEmbedding& operation);
    void apply(State& state, const AddProjected& projection);
    void apply(State& state, const AddNormalised& projection);
    void apply(State& state, const GatedUnit& unit);

    Activations input(const State& state);
    void read_embedding(int row, const Normalise& norm, float* out);
    Activations normalised(int thread, const Normalise& norm, const std::vector<int>* rows, int count);
    template <class Write>
    Activations prepared(int thread, int count, int columns, Write&& write);
    void product(const Matrix& matrix, int first_block, int blocks, const Activations& x, int rows, float* out,
                 int stride);
    template <class Body>
    void each_panel(Body&& body);
    void project_head(const Attend& operation, int unit, const Activations& x, int first_row, int rows, int layer,
                      Scratch& scratch);
    void project(const Heads& heads, int head, const Activations& x, int rows, float* out);
    void rotate(float* head, int row, const Rotary& rotary, int first_angle, float scale);
    void store_key(int row, int layer, int head, const float* key, uint16_t* half);
    void store_value(int row, int layer, int head, const float* value);
    int block_of(int session, int layer, int slot) { return cache_.blocks(session, layer)[slot / kKeyBlock]; }
    Attention& attention_over(int window);

    Model& model_;
    const Program& program_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    Shares& shares_;
    Cache& cache_;
    Buffers& buffers_;
    const std::vector<int>& layers_;
    const std::function<bool()>& interrupted_;
    const Beginnings* beginnings_;
    const int head_size_, width_;

    std::vector<Row> rows_;
    std::vector<Span> spans_;
    std::vector<int> outputs_;           // rows with logits
    std::vector<Attention> attentions_;  // one for each distance that layers see

    static constexpr int kNever = -1;
    int current_layer_ = kNever;  // thread 0's
    std::atomic<int> stop_after_{kNever};
    std::chrono::steady_clock::time_point asked_, stage_start_;
};

}  // namespace slipstream
