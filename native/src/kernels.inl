// The kernels in terms of the lanes that a simd_*.hpp gives. Included once for each instruction set, inside its
// namespace; nothing here may depend on the number of rows but how far loops run.

namespace {

// ---- Products ----------------------------------------------------------------------------------------------------

constexpr int kParts = kChannels / kLanes;  // vectors that cover the channels of a block
constexpr int kLineBytes = 4 * kChannels;
constexpr int kPartBytes = 4 * kLanes;
// How far ahead of the arithmetic weights are fetched, in bytes: from memory into the second cache, and from there into
// the first. The hardware's own prefetching stops at every page of 4 KiB.
constexpr int kSecondCacheAhead = 4096;
constexpr int kFirstCacheAhead = 512;

inline void prefetch_group(const uint8_t* group, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) {
        prefetch_far(group + kSecondCacheAhead + line);
        prefetch(group + kFirstCacheAhead + line);
    }
}

// One vector of channels times ROWS rows of a quantised matrix. Whole numbers are summed exactly within a group;
// groups are added in order, so a row's sum does not know of the other rows.
template <Format FORMAT, int ROWS>
inline void quantised_tile(const uint8_t* weights, int groups, int part, const Activations& x, float* out,
                           ptrdiff_t stride) {
    constexpr bool kNibbles = FORMAT != Format::Q8_0;
    constexpr int kCodeBytes = (kNibbles ? 4 : 8) * kLineBytes;
    constexpr int kGroupBytes = kCodeBytes + (FORMAT == Format::Q4_1 ? 4 : 2) * kChannels;
    using Sum = std::conditional_t<kNibbles, NibbleSum, ByteSum>;
    Floats totals[ROWS];
    for (auto& total : totals) total = zero();
    const uint8_t* group = weights;
    for (int g = 0; g < groups; g++, group += kGroupBytes) {
        if (part == 0) prefetch_group(group, kGroupBytes);
        const uint8_t* line = group + part * kPartBytes;
        const auto run = [&]<int... R>(std::integer_sequence<int, R...>) {
            Sum sums[ROWS] = {Sum(FORMAT == Format::Q4_1 ? 0 : x.starts[R * groups + g])...};
            const int8_t* codes = x.codes + g * kGroup;
            if constexpr (kNibbles) {
                for (int j = 0; j < 4; j++) {
                    const Codes both = load_codes(line + j * kLineBytes);
                    const Codes low = low_nibbles(both), high = high_nibbles(both);
                    (sums[R].add(low, codes + ptrdiff_t(R) * x.columns + 8 * j), ...);
                    (sums[R].add(high, codes + ptrdiff_t(R) * x.columns + 8 * j + 4), ...);
                }
            } else {
                for (int j = 0; j < 8; j++) {
                    const Codes bytes = load_codes(line + j * kLineBytes);
                    (sums[R].add(bytes, codes + ptrdiff_t(R) * x.columns + 4 * j), ...);
                }
            }
            const auto* scale_half = reinterpret_cast<const uint16_t*>(group + kCodeBytes) + part * kLanes;
            const Floats scale = load_half(scale_half);
            ((totals[R] = fma(to_floats(sums[R].finish()), mul(scale, set(x.scales[R * groups + g])), totals[R])), ...);
            if constexpr (FORMAT == Format::Q4_1) {
                const Floats minimum = load_half(scale_half + kChannels);
                ((totals[R] = fma(minimum, set(x.sums[R * groups + g]), totals[R])), ...);
            }
        };
        run(std::make_integer_sequence<int, ROWS>{});
    }
    for (int r = 0; r < ROWS; r++) store(out + r * stride + part * kLanes, totals[r]);
}

template <Format FORMAT>
inline Floats load_weights(const uint8_t* p) {
    if constexpr (FORMAT == Format::F32) return load(reinterpret_cast<const float*>(p));
    if constexpr (FORMAT == Format::F16) return load_half(reinterpret_cast<const uint16_t*>(p));
    return load_bfloat(reinterpret_cast<const uint16_t*>(p));
}

// The same for weights that are numbers. Even and odd inputs have a sum each: one chain of additions would wait for
// itself more than for memory.
template <Format FORMAT, int ROWS>
inline void plain_tile(const uint8_t* weights, int groups, int part, const Activations& x, float* out,
                       ptrdiff_t stride) {
    constexpr int kBytes = FORMAT == Format::F32 ? 4 : 2;
    constexpr int kStep = kChannels * kBytes;
    Floats even[ROWS], odd[ROWS];
    for (int r = 0; r < ROWS; r++) even[r] = odd[r] = zero();
    const uint8_t* p = weights + part * kLanes * kBytes;
    for (int i = 0; i < groups * kGroup; i += 2, p += 2 * kStep) {
        if (part == 0) prefetch_group(p, 2 * kStep);
        const Floats first = load_weights<FORMAT>(p), second = load_weights<FORMAT>(p + kStep);
        for (int r = 0; r < ROWS; r++) {
            const float* value = x.values + ptrdiff_t(r) * x.columns + i;
            even[r] = fma(first, set(value[0]), even[r]);
            odd[r] = fma(second, set(value[1]), odd[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) store(out + r * stride + part * kLanes, add(even[r], odd[r]));
}

template <Format FORMAT, int ROWS>
inline void tile(const uint8_t* weights, int groups, const Activations& x, float* out, ptrdiff_t stride) {
    for (int part = 0; part < kParts; part++) {
        if constexpr (FORMAT == Format::Q4_0 || FORMAT == Format::Q4_1 || FORMAT == Format::Q8_0)
            quantised_tile<FORMAT, ROWS>(weights, groups, part, x, out, stride);
        else
            plain_tile<FORMAT, ROWS>(weights, groups, part, x, out, stride);
    }
}

// Up to kTileRows rows share every weight that was loaded and unpacked.
template <Format FORMAT>
void block_product(const uint8_t* weights, int groups, const Activations& x, int rows, float* out, ptrdiff_t stride) {
    int row = 0;
    for (; rows - row >= kTileRows; row += kTileRows)
        tile<FORMAT, kTileRows>(weights, groups, x.from(row), out + row * stride, stride);
    const auto rest = [&]<int... R>(std::integer_sequence<int, R...>) {
        ((rows - row == R + 1 ? tile<FORMAT, R + 1>(weights, groups, x.from(row), out + row * stride, stride) : void()),
         ...);
    };
    rest(std::make_integer_sequence<int, kTileRows - 1>{});
}

void product(const Matrix& matrix, int block, const Activations& x, int rows, float* out, ptrdiff_t stride) {
    const uint8_t* weights = matrix.block(block);
    const int groups = matrix.groups();
    switch (matrix.format) {
        case Format::F32: return block_product<Format::F32>(weights, groups, x, rows, out, stride);
        case Format::F16: return block_product<Format::F16>(weights, groups, x, rows, out, stride);
        case Format::BF16: return block_product<Format::BF16>(weights, groups, x, rows, out, stride);
        case Format::Q4_0: return block_product<Format::Q4_0>(weights, groups, x, rows, out, stride);
        case Format::Q4_1: return block_product<Format::Q4_1>(weights, groups, x, rows, out, stride);
        case Format::Q8_0: return block_product<Format::Q8_0>(weights, groups, x, rows, out, stride);
    }
}

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

void quantise(const float* x, int count, int8_t* codes, float* scales, int32_t* starts, float* sums) {
    for (int group = 0; group < count / kGroup; group++, x += kGroup, codes += kGroup) {
        Floats peak = zero();
        for (int i = 0; i < kGroup; i += kLanes) peak = max(peak, abs(load(x + i)));
        const float largest_value = largest(peak);
        const Floats inverse = set(largest_value > 0 ? 127.0f / largest_value : 0.0f);
        int32_t sum = 0;
        for (int i = 0; i < kGroup; i += kLanes) {
            // The limits matter for infinities only, and keep what follows defined.
            const Floats whole = round(mul(load(x + i), inverse));
            sum += store_codes(codes + i, max(min(whole, set(127.0f)), set(-127.0f)));
        }
        scales[group] = largest_value / 127.0f;
        starts[group] = -8 * sum;
        sums[group] = scales[group] * float(sum);
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
