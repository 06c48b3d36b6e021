// The kernels of every instruction set against loops in double precision. Inputs lie in vectors of exactly their size,
// so that an address sanitizer sees whatever is read beyond them.
#include "kernels.hpp"

#include <cmath>
#include <functional>

#include "check.hpp"
#include "random_tensor.hpp"

namespace slipstream {
namespace {

using tests::kFormats;
using tests::random_tensor;

void each_set(const std::function<void(const Kernels&, std::mt19937&)>& body) {
    for (const std::string& name : instruction_sets()) {
        std::mt19937 chance(3);
        body(kernels_for(name), chance);
    }
}

std::vector<float> normals(size_t count, std::mt19937& chance, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> numbers(count);
    for (float& number : numbers) number = normal(chance);
    return numbers;
}

bool close(double found, double expected, double tolerance) { return std::abs(found - expected) <= tolerance; }

// Rows of activations with the memory behind them.
struct Rows {
    Rows(const Kernels& kernels, int rows, int columns, std::mt19937& chance)
        : Rows(normals(size_t(rows) * columns, chance)) {
        for (int row = 0; row < rows; row++) {
            const Activations to = view(columns).from(row);
            kernels.quantise(to.values, columns, to);
        }
    }
    explicit Rows(std::vector<float> numbers)
        : values(std::move(numbers)),
          codes(values.size()),
          scales(values.size() / kGroup),
          sums(scales.size()),
          sums16(2 * scales.size()),
          starts(scales.size()),
          starts16(2 * scales.size()) {}
    Activations view(int columns) {
        return {columns,       values.data(), codes.data(),    scales.data(),
                starts.data(), sums.data(),   starts16.data(), sums16.data()};
    }
    // What a matrix of this format multiplies.
    double number(Format format, size_t index) const {
        return is_quantised(format) ? double(codes[index]) * scales[index / kGroup] : double(values[index]);
    }

    std::vector<float> values;
    std::vector<int8_t> codes;
    std::vector<float> scales, sums, sums16;
    std::vector<int32_t> starts, starts16;
};

struct Packed {
    Packed(Format format, int rows, int columns, std::mt19937& chance) {
        const auto source = random_tensor(format, rows, columns, chance);
        matrix.format = format;
        matrix.rows = rows;
        matrix.columns = columns;
        const size_t row_bytes = source.size() / rows;
        bytes.resize(matrix.bytes(), 0xee);
        for (int block = 0; block < matrix.blocks(); block++)
            repack_block(format, source.data() + block * kChannels * row_bytes,
                         std::min(kChannels, rows - block * kChannels), matrix.groups(),
                         bytes.data() + block * matrix.block_bytes());
        matrix.data = bytes.data();
    }
    std::vector<uint8_t> bytes;
    Matrix matrix;
};

void check_product(const Kernels& kernels, Format format, int rows, std::mt19937& chance) {
    const int inputs = layout_of(format).inputs;
    const int columns = inputs * int(1 + chance() % (inputs == kGroup ? 6 : 3)), channels = int(1 + chance() % 40);
    Packed packed(format, channels, columns, chance);
    Rows x(kernels, rows, columns, chance);
    const int stride = packed.matrix.blocks() * kChannels;
    std::vector<float> out(size_t(rows) * stride), alone(stride), weights(columns);
    for (int block = 0; block < packed.matrix.blocks(); block++)
        kernels.product(packed.matrix, block, x.view(columns), rows, out.data() + block * kChannels, stride);
    for (int channel = 0; channel < channels; channel++) {
        read_row(packed.matrix, channel, weights.data());
        for (int row = 0; row < rows; row++) {
            double expected = 0, size = 0;
            for (int i = 0; i < columns; i++) {
                const double term = weights[i] * x.number(format, size_t(row) * columns + i);
                expected += term;
                size += std::abs(term);
            }
            CHECK(close(out[size_t(row) * stride + channel], expected, 1e-5 * (size + 1)));
        }
    }
    for (int row = 0; row < rows; row++) {  // the same bits alone; channels that fill up the block are zero
        for (int block = 0; block < packed.matrix.blocks(); block++)
            kernels.product(packed.matrix, block, x.view(columns).from(row), 1, alone.data() + block * kChannels,
                            stride);
        CHECK(std::memcmp(alone.data(), out.data() + size_t(row) * stride, stride * sizeof(float)) == 0);
        for (int channel = channels; channel < stride; channel++) CHECK(alone[channel] == 0);
    }
}

TEST(products) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        for (Format format : kFormats)
            for (int rows = 1; rows <= 20; rows++) check_product(kernels, format, rows, chance);
    });
}

TEST(quantised_activations) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        Rows rows(normals(4 * kGroup, chance));
        std::vector<float>& x = rows.values;
        std::fill(x.begin() + kGroup, x.begin() + 2 * kGroup, 0.0f);
        x[2 * kGroup] = 1e-38f;
        x[3 * kGroup] = INFINITY;
        x[3 * kGroup + 1] = NAN;
        kernels.quantise(x.data(), int(x.size()), rows.view(int(x.size())));
        for (int group = 0; group < 3; group++) {
            float largest = 0;
            for (int i = 0; i < kGroup; i++) largest = std::max(largest, std::abs(x[group * kGroup + i]));
            CHECK(rows.scales[group] == largest / 127);
            int sums[2] = {0, 0};
            for (int i = 0; i < kGroup; i++) {
                const int code = rows.codes[group * kGroup + i];
                CHECK(code == std::nearbyint(x[group * kGroup + i] * (largest > 0 ? 127 / largest : 0)));
                sums[i / 16] += code;
            }
            CHECK(rows.starts[group] == -8 * (sums[0] + sums[1]));
            CHECK(rows.sums[group] == rows.scales[group] * float(sums[0] + sums[1]));
            for (int half = 0; half < 2; half++) {
                CHECK(rows.starts16[2 * group + half] == -4 * sums[half]);
                CHECK(rows.sums16[2 * group + half] == rows.scales[group] * float(sums[half]));
            }
        }
    });
}

TEST(normalised_rows) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        for (int count : {32, 64, 96, 576}) {
            const auto x = normals(count, chance, 3), weight = normals(count, chance);
            std::vector<float> out(count);
            kernels.normalise(x.data(), weight.data(), 1e-5f, count, out.data());
            double squares = 0;
            for (float number : x) squares += double(number) * number;
            for (int i = 0; i < count; i++) {
                const double expected = x[i] / std::sqrt(squares / count + 1e-5) * weight[i];
                CHECK(close(out[i], expected, 1e-6 * (1 + std::abs(expected))));
            }
        }
    });
}

TEST(gates) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        auto gate = normals(64, chance, 10);
        gate[0] = 200, gate[1] = -200, gate[2] = 0, gate[3] = -0.0f;
        for (int i = 4; i < 32; i++) gate[i] /= 10;  // where GELU bends
        const auto up = normals(64, chance);
        std::vector<float> silu(64), gelu(64);
        kernels.gate_silu(gate.data(), up.data(), 64, silu.data());
        kernels.gate_gelu(gate.data(), up.data(), 64, gelu.data());
        for (int i = 0; i < 64; i++) {
            const double x = gate[i], y = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
            const double expected[] = {x / (1 + std::exp(-x)) * up[i], 0.5 * x * (1 + std::tanh(y)) * up[i]};
            CHECK(close(silu[i], expected[0], 1e-6 * (1e-3 + std::abs(expected[0]))));
            CHECK(close(gelu[i], expected[1], 1e-6 * (1e-3 + std::abs(expected[1]))));
        }
    });
}

TEST(sums_and_factors) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        const auto x = normals(48, chance), before = normals(48, chance);
        auto sum = before, scaled = x;
        kernels.add(x.data(), 48, sum.data());
        kernels.scale(scaled.data(), 48, 0.3f);
        for (int i = 0; i < 48; i++) {
            CHECK(sum[i] == before[i] + x[i]);
            CHECK(scaled[i] == x[i] * 0.3f);
        }
    });
}

TEST(rotations) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        for (bool halves : {false, true}) {
            for (int size : {32, 64, 96}) {
                const auto x = normals(size, chance), angles = normals(size / 2, chance, 5);
                std::vector<float> cosine(size), sine(size), out = x;
                const auto place = [&](int pair, int side) {
                    return halves ? pair + side * size / 2 : 2 * pair + side;
                };
                for (int pair = 0; pair < size / 2; pair++)
                    for (int side = 0; side < 2; side++) {
                        cosine[place(pair, side)] = std::cos(angles[pair]);
                        sine[place(pair, side)] = side ? std::sin(angles[pair]) : -std::sin(angles[pair]);
                    }
                kernels.rotate(out.data(), cosine.data(), sine.data(), size, halves, 0.5f);
                for (int pair = 0; pair < size / 2; pair++) {
                    const double a = x[place(pair, 0)], b = x[place(pair, 1)], angle = angles[pair];
                    CHECK(close(out[place(pair, 0)], (a * std::cos(angle) - b * std::sin(angle)) / 2, 1e-6));
                    CHECK(close(out[place(pair, 1)], (a * std::sin(angle) + b * std::cos(angle)) / 2, 1e-6));
                }
            }
        }
    });
}

TEST(every_half_survives_a_round_trip) {
    each_set([](const Kernels& kernels, std::mt19937&) {
        std::vector<float> numbers;
        std::vector<uint16_t> halves;
        for (int half = 0; half < 1 << 16; half++) {
            if ((half >> 10 & 31) == 31) continue;
            halves.push_back(uint16_t(half));
            numbers.push_back(half_to_float(uint16_t(half)));
        }
        std::vector<uint16_t> out(halves.size());
        kernels.to_half(numbers.data(), int(numbers.size()), out.data());
        CHECK(out == halves);
    });
}

TEST(halves_are_rounded_alike_everywhere) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        std::vector<float> numbers = normals(4096, chance);
        for (size_t i = 0; i < numbers.size(); i++) numbers[i] *= std::exp2(float(int(i % 48)) - 30);
        numbers[0] = 65519.9f, numbers[1] = 65520, numbers[2] = 1e30f, numbers[3] = -INFINITY, numbers[4] = 0x1p-25f;
        std::vector<uint16_t> out(numbers.size());
        kernels.to_half(numbers.data(), int(numbers.size()), out.data());
        for (size_t i = 0; i < numbers.size(); i++) CHECK(out[i] == float_to_half(numbers[i]));
    });
}

TEST(scores_of_keys) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        for (int size : {32, 64, 96, 128}) {
            const auto keys = normals(size_t(kKeyBlock) * size, chance);
            std::vector<uint16_t> packed(keys.size());
            for (int j = 0; j < kKeyBlock; j++)
                for (int d = 0; d < size; d++)
                    packed[(j / kChannels * size + d) * kChannels + j % kChannels] = float_to_half(keys[j * size + d]);
            for (int count = 1; count <= 20; count++) {
                const auto queries = normals(size_t(count) * size, chance);
                std::vector<float> out(count * (kKeyBlock + 3)), alone(kKeyBlock);
                kernels.scores(packed.data(), size, queries.data(), count, out.data(), kKeyBlock + 3);
                for (int q = 0; q < count; q++) {
                    for (int j = 0; j < kKeyBlock; j++) {
                        double expected = 0;
                        for (int d = 0; d < size; d++)
                            expected +=
                                double(queries[q * size + d]) * half_to_float(float_to_half(keys[j * size + d]));
                        CHECK(close(out[q * (kKeyBlock + 3) + j], expected, 1e-4));
                    }
                    kernels.scores(packed.data(), size, queries.data() + q * size, 1, alone.data(), kKeyBlock);
                    CHECK(std::memcmp(alone.data(), &out[q * (kKeyBlock + 3)], kKeyBlock * sizeof(float)) == 0);
                }
            }
        }
    });
}

TEST(softened_scores) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        for (int count = 1; count <= 70; count++) {
            const auto scores = normals(count, chance, 20);
            std::vector<float> weights = scores;
            weights.resize((count + kChannels - 1) / kChannels * kChannels, NAN);
            float maximum;
            const float sum = kernels.soften(weights.data(), count, &maximum);
            CHECK(maximum == *std::max_element(scores.begin(), scores.end()));
            double expected_sum = 0;
            for (int i = 0; i < count; i++) {
                const double expected = std::exp(double(scores[i]) - maximum);
                CHECK(close(weights[i], expected, 4e-6 * expected + 1e-37));
                expected_sum += expected;
            }
            CHECK(close(sum, expected_sum, 1e-5 * expected_sum));
        }
    });
}

TEST(mixed_values) {
    each_set([](const Kernels& kernels, std::mt19937& chance) {
        for (int size : {32, 64, 96, 128, 160}) {
            for (int queries = 1; queries <= 9; queries++) {
                const int positions = int(1 + chance() % kKeyBlock), stride = positions + 5;
                const auto values = normals(size_t(positions) * size, chance);
                const auto weights = normals(size_t(queries) * stride, chance);
                const auto before = normals(size_t(queries) * size, chance);
                std::vector<uint16_t> halves(values.size());
                for (size_t i = 0; i < values.size(); i++) halves[i] = float_to_half(values[i]);
                auto sums = before, parts = before;
                kernels.mix(halves.data(), positions, size, weights.data(), stride, queries, sums.data());
                for (int q = 0; q < queries; q++) {
                    for (int d = 0; d < size; d++) {
                        double expected = before[q * size + d];
                        for (int j = 0; j < positions; j++)
                            expected += double(weights[q * stride + j]) * half_to_float(halves[j * size + d]);
                        CHECK(close(sums[q * size + d], expected, 1e-4));
                    }
                    for (int j = 0; j < positions; j++)  // position by position, query by query: the same bits
                        kernels.mix(&halves[j * size], 1, size, &weights[q * stride + j], stride, 1, &parts[q * size]);
                }
                CHECK(std::memcmp(sums.data(), parts.data(), sums.size() * sizeof(float)) == 0);
            }
        }
    });
}

TEST(unknown_instruction_sets) {
    CHECK(instruction_sets().back() == "portable");
    CHECK(tests::throws<std::invalid_argument>([] { kernels_for("avx9000"); }));
}

}  // namespace
}  // namespace slipstream
