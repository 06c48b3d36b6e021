#include "buffers.hpp"

namespace slipstream {
namespace {

int tile_queries(const Program& program) { return tile_rows(program) * program.group(); }

int tail_stride_of(const Limits& limits) { return (limits.rows + 2 * kKeyBlock) / kKeyBlock * kKeyBlock; }

int padded_vocabulary(const Program& program) { return program.output.blocks() * kChannels; }

// Columns of the widest gated unit.
int feed_forward_size(const Program& program) {
    int widest = kGroup;
    for (const auto& layer : program.layers)
        for (const Operation& operation : layer)
            if (const auto* unit = std::get_if<GatedUnit>(&operation)) widest = std::max(widest, unit->gate.rows);
    return widest;
}

// Numbers of each part of Scratch, in order.
std::array<size_t, 7> scratch_parts(const Program& program, const Limits& limits) {
    const size_t queries = tile_queries(program), head = program.head_size;
    return {2 * kPanel * std::max<size_t>(head, kGroup),
            queries * head,
            queries * kChunk,
            queries * tail_stride_of(limits),
            2 * queries * (head + 2),
            head,
            size_t(limits.rows)};
}

}  // namespace

size_t most_partials(const Program& program, const Limits& limits, int threads) {
    const size_t chunks = (size_t(limits.context) + kChunk - 1) / kChunk;
    const size_t tiles_and_heads = size_t(kUnitsPerThread) * threads;
    return std::min(kMostPartials, tiles_and_heads * chunks * tile_queries(program) * (program.head_size + 2));
}

size_t Scratch::bytes(const Program& program, const Limits& limits) {
    size_t numbers = 0;
    for (size_t part : scratch_parts(program, limits)) numbers += part;
    return numbers * sizeof(float);
}

Scratch::Scratch(const Program& program, const Limits& limits)
    : memory(bytes(program, limits)),
      normalised(kPrivateRows, program.input_width()),
      tail_stride(tail_stride_of(limits)) {
    const auto parts = scratch_parts(program, limits);
    auto* next = memory.as<float>();
    auto take = [&, i = 0]() mutable {
        float* part = next;
        next += parts[i++];
        return part;
    };
    product = take();
    queries = take();
    scores = take();
    tail = take();
    partials = take();
    half = reinterpret_cast<uint16_t*>(take());
    path = reinterpret_cast<int*>(take());
}

size_t Buffers::bytes(const Program& program, const Limits& limits, int threads, int outputs) {
    const int attended = program.heads * program.head_size;
    const size_t rows = limits.rows;
    return ActivationBuffer::bytes(limits.rows, program.input_width()) +
           ActivationBuffer::bytes(limits.rows, attended) +
           ActivationBuffer::bytes(limits.rows, feed_forward_size(program)) +
           ActivationBuffer::bytes(limits.rows, program.fuse.matrix.columns) +
           rows * sizeof(float) * (program.width + attended + 2 * program.angles()) +
           most_partials(program, limits, threads) * sizeof(float) +
           size_t(outputs) * padded_vocabulary(program) * sizeof(float) +
           threads * (Scratch::bytes(program, limits) + ActivationBuffer::bytes(kPrivateRows, program.input_width()));
}

Buffers::Buffers(const Program& program, const Limits& limits, int threads)
    : stream_memory(size_t(limits.rows) * program.width * sizeof(float)),
      stream(stream_memory.as<float>()),
      normalised(limits.rows, program.input_width()),
      attended(limits.rows, program.heads * program.head_size),
      gated(limits.rows, feed_forward_size(program)),
      fused(program.fuse.used() ? limits.rows : 0, program.fuse.matrix.columns),
      query_memory(size_t(limits.rows) * program.heads * program.head_size * sizeof(float)),
      queries(query_memory.as<float>()),
      rotary_memory(2 * size_t(limits.rows) * program.angles() * sizeof(float)),
      cosines(rotary_memory.as<float>()),
      sines(cosines + size_t(limits.rows) * program.angles()),
      logits_memory(size_t(limits.rows) * padded_vocabulary(program) * sizeof(float)),
      logits(logits_memory.as<float>()),
      logits_stride(padded_vocabulary(program)) {
    for (int thread = 0; thread < threads; thread++) scratch.emplace_back(program, limits);
}

}  // namespace slipstream
