// A decoder with its sessions: one call is one forward of rows from any number of sessions.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "program.hpp"
#include "weights.hpp"

namespace slipstream {

// Rows of one session in one forward.
struct Segment {
    int session = 0;
    std::vector<int> tokens;
    std::vector<int> parents;  // index of the parent row, -1 for the last token before; empty for a chain
    int outputs = 0;           // how many rows have logits, counted from the last
};

// What rows begin with in a program that begins with Fuse; read while the forward runs.
struct Beginnings {
    const float* embeddings = nullptr;  // [rows, width], of the rows' tokens
    const float* states = nullptr;      // [rows, width]: what rows go on from that are not fused
    const float* hidden = nullptr;      // [fused rows, numbers of the hidden states]
    std::vector<int> fused;             // rows that begin with hidden states, each once
};

// Where the time of a forward went, in seconds as the calling thread saw them.
enum Stage { kPrepare, kQueryKeyValue, kAttention, kProjection, kGatedUnit, kOutput, kStages };
constexpr std::array<const char*, kStages> kStageNames = {"prepare",    "query_key_value", "attention",
                                                          "projection", "gated_unit",      "output"};
using Profile = std::array<double, kStages>;

struct Interrupted : std::exception {};

class Buffers;

// Shared with whoever reads it: the next forward makes another.
using HiddenState = std::shared_ptr<std::vector<float>>;

class Model {
   public:
    // Throws std::invalid_argument for a program that does not fit together, std::bad_alloc.
    Model(std::shared_ptr<const Weights> weights, Program program, const Kernels& kernels,
          std::shared_ptr<ThreadPool> pool, Limits limits);
    ~Model();

    // Computes the rows. Sessions keep their committed tokens whatever happens; rows can be committed afterwards.
    // layers:      the layers to run, ascending; empty for all
    // hidden:      layers whose output is kept for `hidden_state`
    // beginnings:  what rows begin with, for a program that begins with Fuse, whose rows' tokens mean nothing
    // interrupted: asked now and then by the calling thread; true ends the forward with Interrupted
    void forward(const std::vector<Segment>& segments, const std::vector<int>& layers, const std::vector<int>& hidden,
                 const std::function<bool()>& interrupted, const Beginnings* beginnings = nullptr);

    // Logits of the last forward, [outputs, logits_stride], in memory that lives as long as the model, and the residual
    // stream after a layer, [rows, width].
    const float* logits() const;
    int logits_stride() const;
    int outputs() const { return outputs_; }
    int rows() const { return rows_; }
    HiddenState hidden_state(int layer) const;

    // Throws std::logic_error while a forward runs, be it in another thread or in a signal handler's caller.
    Cache& cache();
    const Program& program() const { return program_; }
    const Profile& profile() const { return profile_; }
    size_t buffer_bytes() const;

    static size_t buffer_bytes_for(const Program& program, const Limits& limits, int threads);

   private:
    friend class Forward;
    friend class Attention;

    std::shared_ptr<const Weights> weights_;
    const Program program_;
    const Kernels& kernels_;
    std::shared_ptr<ThreadPool> pool_;
    const Limits limits_;
    Cache cache_;
    std::unique_ptr<Buffers> buffers_;
    std::vector<std::pair<int, HiddenState>> hidden_;
    std::atomic<bool> running_{false};
    Profile profile_{};
    int rows_ = 0;
    int outputs_ = 0;
};

}  // namespace slipstream
