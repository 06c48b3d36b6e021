// The kernels in terms of the lanes that a simd_*.hpp gives. Included once for each instruction set, inside its
// namespace; nothing here may depend on the number of rows but how far loops run.

#include "products.inl"

namespace {

// ---- One row at a time ---------------------------------------------------------------------------------------------

void normalise(const float* x, const float* weight, float epsilon, int count, float* out) {
    Floats squares[4] = {zero(), zero(), zero(), zero()};
    int vector = 0;
    for (int i = 0; i < count; i += kLanes, vector = (vector + 1) % 4) {
        const Floats part = load(x + i);
        squares[vector] = fma(part, part, squares[vector]);
    }
    const float sum = total(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
    const Floats factor = set(1.0f / __builtin_sqrtf(sum / float(count) + epsilon));
    for (int i = 0; i < count; i += kLanes) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
}

void quantise(const float* x, int count, const Activations& out) {
    constexpr int kHalf = kGroup / 2;
    for (int group = 0; group < count / kGroup; group++, x += kGroup) {
        int8_t* codes = out.codes + group * kGroup;
        Floats peak = zero();
        for (int i = 0; i < kGroup; i += kLanes) peak = max(peak, abs(load(x + i)));
        const float largest_value = largest(peak), scale = largest_value / 127.0f;
        const Floats inverse = set(largest_value > 0 ? 127.0f / largest_value : 0.0f);
        int32_t whole_sum = 0;
        for (int half = 0; half < 2; half++) {
            int32_t sum = 0;
            for (int i = half * kHalf; i < (half + 1) * kHalf; i += kLanes) {
                // The limits matter for infinities only, and keep what follows defined.
                const Floats whole = round(mul(load(x + i), inverse));
                sum += store_codes(codes + i, max(min(whole, set(127.0f)), set(-127.0f)));
            }
            out.starts16[2 * group + half] = -4 * sum;
            out.sums16[2 * group + half] = scale * float(sum);
            whole_sum += sum;
        }
        out.scales[group] = scale;
        out.starts[group] = -8 * whole_sum;
        out.sums[group] = scale * float(whole_sum);
    }
}

// e^x to about one unit in the last place (Cephes' polynomial); below -87 it is 2e-38, above 88 it is 2e38.
inline Floats exponential(Floats x) {
    x = max(min(x, set(88.0f)), set(-87.0f));
    const Floats n = round(mul(x, set(1.44269504f)));
    const Floats r = fma(n, set(2.12194440e-4f), fma(n, set(-0.693359375f), x));
    Floats p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    return mul(add(fma(mul(p, r), r, r), set(1.0f)), power_of_two(n));
}

// x * sigmoid(bend(x)) * up
template <class Bend>
inline void gate_by(const float* gate, const float* up, int count, float* out, Bend&& bend) {
    for (int i = 0; i < count; i += kLanes) {
        const Floats x = load(gate + i);
        const Floats gated = div(x, add(set(1.0f), exponential(sub(zero(), bend(x)))));
        store(out + i, mul(gated, load(up + i)));
    }
}

void gate_silu(const float* gate, const float* up, int count, float* out) {
    gate_by(gate, up, count, out, [](Floats x) { return x; });
}

// 0.5 x (1 + tanh(y)) = x sigmoid(2 y), with y = sqrt(2 / pi) (x + 0.044715 x^3)
void gate_gelu(const float* gate, const float* up, int count, float* out) {
    gate_by(gate, up, count, out,
            [](Floats x) { return mul(x, fma(mul(x, x), set(0.0713548163f), set(1.5957691216f))); });
}

void add_to(const float* x, int count, float* sum) {
    for (int i = 0; i < count; i += kLanes) store(sum + i, add(load(sum + i), load(x + i)));
}

void rotate(float* x, const float* cosine, const float* sine, int count, bool halves, float factor) {
    const Floats factors = set(factor);
    const auto turned = [&](Floats own, Floats partner, int i) {
        return mul(fma(own, load(cosine + i), mul(partner, load(sine + i))), factors);
    };
    if (halves) {
        const int half = count / 2;
        for (int i = 0; i < half; i += kLanes) {
            const Floats first = load(x + i), second = load(x + half + i);
            store(x + i, turned(first, second, i));
            store(x + half + i, turned(second, first, half + i));
        }
    } else {
        for (int i = 0; i < count; i += kLanes) {
            const Floats own = load(x + i);
            store(x + i, turned(own, swap_pairs(own), i));
        }
    }
}

void scale_by(float* x, int count, float factor) {
    for (int i = 0; i < count; i += kLanes) store(x + i, mul(load(x + i), set(factor)));
}

void to_half(const float* x, int count, uint16_t* out) {
    for (int i = 0; i < count; i += kLanes) store_half(out + i, load(x + i));
}

// ---- Attention -----------------------------------------------------------------------------------------------------

// Keys lie transposed, 16 positions beside each other, so a score is a chain of fma over the head's size, whatever
// queries and positions share the loop.
template <int VECTORS, int QUERIES>
inline void score_tile(const uint16_t* keys, int size, const float* queries, float* out, ptrdiff_t stride) {
    constexpr int kPerColumn = kChannels / kLanes;  // vectors of 16 positions
    Floats sums[VECTORS][QUERIES];
    for (auto& row : sums)
        for (auto& sum : row) sum = zero();
    for (int d = 0; d < size; d++) {
        Floats key[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            key[v] = load_half(keys + (ptrdiff_t(v / kPerColumn) * size + d) * kChannels + v % kPerColumn * kLanes);
        for (int q = 0; q < QUERIES; q++) {
            const Floats query = set(queries[q * size + d]);
            for (int v = 0; v < VECTORS; v++) sums[v][q] = fma(key[v], query, sums[v][q]);
        }
    }
    for (int v = 0; v < VECTORS; v++)
        for (int q = 0; q < QUERIES; q++) store(out + q * stride + v * kLanes, sums[v][q]);
}

template <int VECTORS, int QUERIES>
inline void score_block(const uint16_t* keys, int size, const float* queries, float* out, ptrdiff_t stride) {
    for (int position = 0; position < kKeyBlock; position += VECTORS * kLanes)
        score_tile<VECTORS, QUERIES>(keys + ptrdiff_t(position) * size, size, queries, out + position, stride);
}

void scores(const uint16_t* keys, int size, const float* queries, int count, float* out, ptrdiff_t stride) {
    constexpr int kWideVectors = kScoreVectors > 1 && kWideQueries > 4 ? kScoreVectors / 2 : kScoreVectors;
    int q = 0;
    for (; count - q >= kWideQueries; q += kWideQueries)
        score_block<kWideVectors, kWideQueries>(keys, size, queries + q * size, out + q * stride, stride);
    for (; count - q >= 4; q += 4)
        score_block<kScoreVectors, 4>(keys, size, queries + q * size, out + q * stride, stride);
    switch (count - q) {
        case 3: return score_block<kScoreVectors, 3>(keys, size, queries + q * size, out + q * stride, stride);
        case 2: return score_block<kScoreVectors, 2>(keys, size, queries + q * size, out + q * stride, stride);
        case 1: return score_block<kScoreVectors, 1>(keys, size, queries + q * size, out + q * stride, stride);
    }
}

float soften(float* scores, int count, float* maximum) {
    const float lowest = -__builtin_huge_valf();
    const int padded = (count + kChannels - 1) / kChannels * kChannels;
    for (int i = count; i < padded; i++) scores[i] = lowest;
    Floats peak = set(lowest);
    for (int i = 0; i < padded; i += kLanes) peak = max(peak, load(scores + i));
    *maximum = largest(peak);
    const Floats shift = set(*maximum);
    Floats sum[2] = {zero(), zero()};
    for (int i = 0; i < padded; i += kLanes) {
        const Floats weight = exponential(sub(load(scores + i), shift));
        store(scores + i, weight);
        sum[i / kLanes % 2] = add(sum[i / kLanes % 2], weight);
    }
    return total(add(sum[0], sum[1]));
}

template <int VECTORS, int QUERIES>
inline void mix_tile(const uint16_t* values, int positions, int size, const float* weights, ptrdiff_t stride,
                     float* sums) {
    Floats total[QUERIES][VECTORS];
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++) total[q][v] = load(sums + q * size + v * kLanes);
    for (int j = 0; j < positions; j++) {
        Floats value[VECTORS];
        for (int v = 0; v < VECTORS; v++) value[v] = load_half(values + ptrdiff_t(j) * size + v * kLanes);
        for (int q = 0; q < QUERIES; q++) {
            const Floats weight = set(weights[q * stride + j]);
            for (int v = 0; v < VECTORS; v++) total[q][v] = fma(value[v], weight, total[q][v]);
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++) store(sums + q * size + v * kLanes, total[q][v]);
}

template <int QUERIES>
inline void mix_queries(const uint16_t* values, int positions, int size, const float* weights, ptrdiff_t stride,
                        float* sums) {
    constexpr int kVectors = 4;
    int d = 0;
    for (; size - d >= kVectors * kLanes; d += kVectors * kLanes)
        mix_tile<kVectors, QUERIES>(values + d, positions, size, weights, stride, sums + d);
    for (; d < size; d += kLanes) mix_tile<1, QUERIES>(values + d, positions, size, weights, stride, sums + d);
}

void mix(const uint16_t* values, int positions, int size, const float* weights, ptrdiff_t stride, int queries,
         float* sums) {
    int q = 0;
    for (; queries - q >= kMixQueries; q += kMixQueries)
        mix_queries<kMixQueries>(values, positions, size, weights + q * stride, stride, sums + q * size);
    const auto rest = [&]<int... Q>(std::integer_sequence<int, Q...>) {
        ((queries - q == Q + 1
              ? mix_queries<Q + 1>(values, positions, size, weights + q * stride, stride, sums + q * size)
              : void()),
         ...);
    };
    rest(std::make_integer_sequence<int, kMixQueries - 1>{});
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    SLIPSTREAM_NAME, product,  normalise, quantise, gate_silu, gate_gelu, add_to,
    rotate,          scale_by, to_half,   scores,   soften,    mix,
};
