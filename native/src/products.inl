// Products with matrices of every format, in terms of the lanes that a simd_*.hpp gives; a part of kernels.inl.

namespace {

constexpr int kParts = kChannels / kLanes;  // vectors that cover the channels of a block
constexpr int kPartBytes = 4 * kLanes;
// How far ahead of the arithmetic weights are fetched, in bytes: from memory into the second cache, and from there into
// the first. The hardware's own prefetching stops at every page of 4 KiB.
constexpr int kSecondCacheAhead = 8192;
constexpr int kFirstCacheAhead = 1024;

inline void prefetch_group(const uint8_t* group, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) {
        prefetch_far(group + kSecondCacheAhead + line);
        prefetch(group + kFirstCacheAhead + line);
    }
}

// ---- Quantised formats ---------------------------------------------------------------------------------------------

// Step `STEP` of a plane of `BITS` bits, moved to bit `TO` of each byte.
template <int BITS, int STEP, int TO>
inline Codes plane(const uint8_t* lines) {
    const Codes line = load_codes(lines + line_of(STEP, BITS) * kLine);
    if constexpr (BITS == 8)
        return line;
    else
        return bits<bit_of(STEP, BITS), BITS, TO>(line);
}

// The codes of inputs 4 * STEP to 4 * STEP + 3 of 32 inputs whose lines begin at `lines`.
template <Format FORMAT, int STEP>
inline Codes codes_of(const uint8_t* lines) {
    constexpr Layout kLayout = layout_of(FORMAT);
    const Codes low = plane<kLayout.low_bits, STEP, 0>(lines);
    if constexpr (kLayout.table)
        return look_up(kCurve, low);
    else if constexpr (kLayout.high_bits > 0)
        return merge(low, plane<kLayout.high_bits, STEP, kLayout.low_bits>(lines + kLayout.low_bits * kLine));
    else
        return low;
}

// The scales and minima of a vector of channels in a stored group; `at` is where they begin there, for these channels.
template <Format FORMAT>
class Scales {
    static constexpr Layout kLayout = layout_of(FORMAT);
    static constexpr bool kPacked = kLayout.shared < kGroup && kLayout.minimum;  // four bits each in a byte

   public:
    Scales(const uint8_t* group, int part) : bytes_(group + kLayout.code_bytes() + part * kLanes) {
        const auto* halves = reinterpret_cast<const uint16_t*>(group + kLayout.code_bytes() + kLayout.scale_bytes());
        scale_ = load_half(halves + part * kLanes);
        if constexpr (kLayout.minimum) minimum_ = load_half(halves + kChannels + part * kLanes);
        if constexpr (kLayout.super() && kLayout.minimum) minimum_ = sub(zero(), minimum_);  // stored without its sign
    }

    // Of half `half` of the 32 inputs `index`; the halves of a group that shares a scale have the same.
    Floats scale(int index, int half) const {
        if constexpr (!kLayout.super()) return scale_;
        const uint8_t* bytes = bytes_ + index * kScales;
        if constexpr (kLayout.shared == kGroup) return mul(scale_, to_floats(widen(bytes)));
        bytes += half * kChannels;
        if constexpr (kPacked) return mul(scale_, to_floats(four_bits<0>(widen(bytes))));
        return mul(scale_, to_floats(widen(reinterpret_cast<const int8_t*>(bytes))));
    }
    Floats minimum(int index, int half) const {
        if constexpr (!kLayout.super()) return minimum_;
        const uint8_t* bytes = bytes_ + index * kScales + (kPacked ? half : 1) * kChannels;
        if constexpr (kPacked) return mul(minimum_, to_floats(four_bits<4>(widen(bytes))));
        return mul(minimum_, to_floats(widen(bytes)));
    }

   private:
    const uint8_t* bytes_;
    Floats scale_, minimum_;
};

// One vector of channels times ROWS rows of a quantised matrix. Whole numbers are summed exactly as far as they share
// a scale; halves of a group are added in order, and so are groups, so a row's sum does not know of the other rows.
template <Format FORMAT, int ROWS>
class QuantisedTile {
    static constexpr Layout kLayout = layout_of(FORMAT);
    // An offset is a power of two, and what a sum of codes begins with is a multiple of it.
    static constexpr bool kHalved = kLayout.shared < kGroup;
    static constexpr int kStart = kHalved ? 4 : 8;
    static constexpr int kShift = kLayout.offset ? std::countr_zero(unsigned(kLayout.offset / kStart)) : 0;
    using Sum = CodeSum<kLayout.code_bits(), kShift>;

   public:
    static void run(const uint8_t* group, int groups, int part, const Activations& x, float* out, ptrdiff_t stride) {
        constexpr int kGroups = kLayout.inputs / kGroup;
        constexpr int kAhead = kLayout.group_bytes() / kGroups;
        QuantisedTile tile(x);
        for (int i = 0; i < groups; i++, group += kLayout.group_bytes()) {
            const Scales<FORMAT> scales(group, part);
            for (int j = 0; j < kGroups; j++) {
                if (part == 0) prefetch_group(group + j * kAhead, kAhead);
                const uint8_t* lines = group + j * kLayout.line_bytes() + part * kPartBytes;
                tile.add(lines, scales, j, i * kGroups + j, std::make_integer_sequence<int, ROWS>{});
            }
        }
        for (int r = 0; r < ROWS; r++) store(out + r * stride + part * kLanes, tile.totals_[r]);
    }

   private:
    explicit QuantisedTile(const Activations& x) : x_(x), groups_(x.columns / kGroup) {
        for (auto& total : totals_) total = zero();
    }

    // 32 inputs, whose activations are group `g`.
    template <int... R>
    void add(const uint8_t* lines, const Scales<FORMAT>& scales, int j, int g, std::integer_sequence<int, R...> rows) {
        if constexpr (kHalved) {
            Floats terms[ROWS];
            const Floats first = scales.scale(j, 0), second = scales.scale(j, 1);
            {
                Sum sums[ROWS] = {Sum(kLayout.offset ? x_.starts16[2 * (R * groups_ + g)] : 0)...};
                sum_codes<0, kSteps / 2>(lines, g, sums, rows);
                ((terms[R] = mul(to_floats(sums[R].finish()), first)), ...);
            }
            Sum sums[ROWS] = {Sum(kLayout.offset ? x_.starts16[2 * (R * groups_ + g) + 1] : 0)...};
            sum_codes<kSteps / 2, kSteps>(lines, g, sums, rows);
            ((terms[R] = fma(to_floats(sums[R].finish()), second, terms[R])), ...);
            ((totals_[R] = fma(terms[R], set(x_.scales[R * groups_ + g]), totals_[R])), ...);
            if constexpr (kLayout.minimum) {
                const Floats least = scales.minimum(j, 0), other = scales.minimum(j, 1);
                ((totals_[R] = fma(least, set(x_.sums16[2 * (R * groups_ + g)]), totals_[R])), ...);
                ((totals_[R] = fma(other, set(x_.sums16[2 * (R * groups_ + g) + 1]), totals_[R])), ...);
            }
        } else {
            Sum sums[ROWS] = {Sum(kLayout.offset ? x_.starts[R * groups_ + g] : 0)...};
            sum_codes<0, kSteps>(lines, g, sums, rows);
            const Floats scale = scales.scale(j, 0);
            ((totals_[R] = fma(to_floats(sums[R].finish()), mul(scale, set(x_.scales[R * groups_ + g])), totals_[R])),
             ...);
            if constexpr (kLayout.minimum) {
                const Floats minimum = scales.minimum(j, 0);
                ((totals_[R] = fma(minimum, set(x_.sums[R * groups_ + g]), totals_[R])), ...);
            }
        }
    }

    // Steps STEP to END of group `g`, two at a time.
    template <int STEP, int END, int... R>
    void sum_codes(const uint8_t* lines, int g, Sum* sums, std::integer_sequence<int, R...> rows) const {
        const Codes first = codes_of<FORMAT, STEP>(lines), second = codes_of<FORMAT, STEP + 1>(lines);
        const int8_t* codes = x_.codes + g * kGroup + 4 * STEP;
        (sums[R].add(first, second, codes + ptrdiff_t(R) * x_.columns), ...);
        if constexpr (STEP + 2 < END) sum_codes<STEP + 2, END>(lines, g, sums, rows);
    }

    const Activations& x_;
    const int groups_;
    Floats totals_[ROWS];
};

// ---- Formats that are numbers --------------------------------------------------------------------------------------

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

// ---- All of them ---------------------------------------------------------------------------------------------------

template <Format FORMAT, int ROWS>
inline void tile(const uint8_t* weights, int groups, const Activations& x, float* out, ptrdiff_t stride) {
    for (int part = 0; part < kParts; part++) {
        if constexpr (layout_of(FORMAT).quantised())
            QuantisedTile<FORMAT, ROWS>::run(weights, groups, part, x, out, stride);
        else
            plain_tile<FORMAT, ROWS>(weights, groups, part, x, out, stride);
    }
}

// Up to kTileRows rows share every weight that was loaded and unpacked.
template <Format FORMAT>
void block_product(const Matrix& matrix, int block, const Activations& x, int rows, float* out, ptrdiff_t stride) {
    const uint8_t* weights = matrix.block(block);
    const int groups = matrix.groups();
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
    switch (matrix.format) {
        case Format::F32: return block_product<Format::F32>(matrix, block, x, rows, out, stride);
        case Format::F16: return block_product<Format::F16>(matrix, block, x, rows, out, stride);
        case Format::BF16: return block_product<Format::BF16>(matrix, block, x, rows, out, stride);
        case Format::Q4_0: return block_product<Format::Q4_0>(matrix, block, x, rows, out, stride);
        case Format::Q4_1: return block_product<Format::Q4_1>(matrix, block, x, rows, out, stride);
        case Format::Q5_0: return block_product<Format::Q5_0>(matrix, block, x, rows, out, stride);
        case Format::Q5_1: return block_product<Format::Q5_1>(matrix, block, x, rows, out, stride);
        case Format::Q8_0: return block_product<Format::Q8_0>(matrix, block, x, rows, out, stride);
        case Format::Q2_K: return block_product<Format::Q2_K>(matrix, block, x, rows, out, stride);
        case Format::Q3_K: return block_product<Format::Q3_K>(matrix, block, x, rows, out, stride);
        case Format::Q4_K: return block_product<Format::Q4_K>(matrix, block, x, rows, out, stride);
        case Format::Q5_K: return block_product<Format::Q5_K>(matrix, block, x, rows, out, stride);
        case Format::Q6_K: return block_product<Format::Q6_K>(matrix, block, x, rows, out, stride);
        case Format::IQ4_NL: return block_product<Format::IQ4_NL>(matrix, block, x, rows, out, stride);
    }
}

}  // namespace
