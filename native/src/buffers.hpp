// The memory that a forward works in, allocated once.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "program.hpp"

namespace slipstream {

constexpr int kPanel = 128;         // rows that stay in a core's cache while weights pass by
constexpr int kChunk = 256;         // positions of a chunk of attention, cut at multiples from position 0
constexpr int kPrivateRows = 2;     // so few rows every thread normalises for itself: cheaper than meeting
constexpr int kAttendingRows = 8;   // rows that attend together
constexpr int kUnitsPerThread = 4;  // fewer units of attention than this, and chunks are shared out too
constexpr size_t kMostPartials = size_t(16) << 20;  // numbers; where more were needed, a tile's chunks stay together
constexpr int kTileQueries = 32;  // queries (rows x heads of a group) that attend together, if a group is no larger
constexpr int kExpectedOutputs = 32;

// Activations [rows, columns] with the memory behind them.
class ActivationBuffer {
   public:
    ActivationBuffer() = default;
    ActivationBuffer(int rows, int columns) : memory_(bytes(rows, columns)) {
        const size_t values = size_t(rows) * columns, groups = values / kGroup;
        auto* floats = memory_.as<float>();
        view_.columns = columns;
        view_.values = floats;
        view_.scales = floats + values;
        view_.sums = view_.scales + groups;
        view_.sums16 = view_.sums + groups;
        view_.starts = reinterpret_cast<int32_t*>(view_.sums16 + 2 * groups);
        view_.starts16 = view_.starts + groups;
        view_.codes = reinterpret_cast<int8_t*>(view_.starts16 + 2 * groups);
    }

    static size_t bytes(int rows, int columns) {
        const size_t values = size_t(rows) * columns;
        return values * 5 + values / kGroup * 28;
    }
    const Activations& view() const { return view_; }

   private:
    Memory memory_;
    Activations view_;
};

// Rows of a tile that attend together; a group of more than kTileQueries heads makes single rows.
inline int tile_rows(const Program& program) { return std::clamp(kTileQueries / program.group(), 1, kAttendingRows); }

// Softmax in the making, for each query: the largest score, the sum of exp(score - largest), the values so weighted.
struct Partial {
    float* maximum;  // [queries]
    float* sum;      // [queries]
    float* mixed;    // [queries, head_size]
};

inline Partial partial_at(float* start, int queries) { return {start, start + queries, start + 2 * queries}; }

// What one thread alone writes.
struct Scratch {
    Scratch(const Program& program, const Limits& limits);
    static size_t bytes(const Program& program, const Limits& limits);

    Partial chunk(int queries) const { return partial_at(partials, queries); }
    Partial all(int queries, int head_size) const {
        return partial_at(partials + size_t(queries) * (head_size + 2), queries);
    }

    Memory memory;
    ActivationBuffer normalised;  // [kPrivateRows, input width]
    float* product;               // [2, kPanel, max(head_size, 32)]
    float* queries;               // [tile queries, head_size]
    float* scores;                // [tile queries, kChunk]
    float* tail;                  // [tile queries, rows + kKeyBlock]: scores of a tree's own rows
    float* partials;              // [2, tile queries, head_size + 2]: of one chunk, and of all so far
    uint16_t* half;               // [head_size]
    int* path;                    // [rows]: slots of a tree row's path
    int tail_stride;
};

class Buffers {
   public:
    Buffers(const Program& program, const Limits& limits, int threads);
    static size_t bytes(const Program& program, const Limits& limits, int threads, int outputs);

    Memory stream_memory;
    float* stream;                // [rows, width]: the residual stream
    ActivationBuffer normalised;  // [rows, input width]
    ActivationBuffer attended;    // [rows, heads * head_size]
    ActivationBuffer gated;       // [rows, feed-forward size]
    ActivationBuffer fused;       // [rows, numbers of the hidden states], where rows begin with them
    Memory query_memory;
    float* queries;  // [rows, heads * head_size]
    Memory rotary_memory;
    float* cosines;  // [rows, angles]
    float* sines;
    Memory logits_memory;
    float* logits;  // [rows, logits_stride]
    int logits_stride;
    int most_outputs = 0;
    std::vector<Scratch> scratch;
    std::vector<float> partials;  // of tiles whose chunks several threads share
};

// Numbers for partials that a forward may use.
size_t most_partials(const Program& program, const Limits& limits, int threads);

}  // namespace slipstream
