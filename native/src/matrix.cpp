#include "matrix.hpp"

#include <cstring>

#include "half.hpp"

namespace slipstream {
namespace {

constexpr int kFewest = 16;  // inputs that share a scale at least

float half_at(const uint8_t* bytes) {
    uint16_t half;
    std::memcpy(&half, bytes, sizeof half);
    return half_to_float(half);
}

// value = scale * code + minimum
struct Scale {
    float scale, minimum;
};

// Of input `input` of a stored group of one channel.
Scale scale_at(const Layout& layout, const uint8_t* group, int input, int channel) {
    const uint8_t* scales = group + layout.code_bytes();
    const uint8_t* halves = scales + layout.scale_bytes() + 2 * channel;
    const float whole = half_at(halves), minimum = layout.minimum ? half_at(halves + kHalves) : 0.0f;
    if (!layout.super()) return {whole, minimum};
    const uint8_t* bytes = scales + input / kGroup * kScales + channel;
    if (layout.shared == kGroup) return {whole * float(bytes[0]), -minimum * float(bytes[kChannels])};
    const uint8_t byte = bytes[input % kGroup / layout.shared * kChannels];
    if (layout.minimum) return {whole * float(byte & 15), -minimum * float(byte >> 4)};
    return {whole * float(int8_t(byte)), 0.0f};
}

// The bits of input `input` of 32 in the plane of `bits` bits that begins at `lines`.
int bits_at(const uint8_t* lines, int bits, int input, int channel) {
    const int step = input / 4, mask = (1 << bits) - 1;
    return lines[line_of(step, bits) * kLine + 4 * channel + input % 4] >> bit_of(step, bits) & mask;
}

int code_at(const Layout& layout, const uint8_t* group, int input, int channel) {
    const uint8_t* lines = group + input / kGroup * layout.line_bytes();
    int code = bits_at(lines, layout.low_bits, input % kGroup, channel);
    if (layout.high_bits > 0) {
        const uint8_t* behind = lines + layout.low_bits * kLine;
        code |= bits_at(behind, layout.high_bits, input % kGroup, channel) << layout.low_bits;
    }
    return (layout.table ? kCurve[code] : code) - layout.offset;
}

void read_quantised(const Layout& layout, const uint8_t* group, int channel, float* out) {
    for (int first = 0; first < layout.inputs; first += kFewest) {
        const auto [scale, minimum] = scale_at(layout, group, first, channel);
        for (int i = first; i < first + kFewest; i++) {
            const float product = scale * float(code_at(layout, group, i, channel));
            out[i] = layout.minimum ? product + minimum : product;
        }
    }
}

void read_plain(Format format, const uint8_t* group, int channel, float* out) {
    for (int i = 0; i < kGroup; i++) {
        const size_t place = size_t(i) * kChannels + channel;
        uint16_t half;
        if (format == Format::F32) {
            std::memcpy(out + i, group + 4 * place, 4);
            continue;
        }
        std::memcpy(&half, group + 2 * place, 2);
        out[i] = format == Format::F16 ? half_to_float(half) : bfloat_to_float(half);
    }
}

}  // namespace

bool is_known(int format) { return layout_of(Format(format)).file_bytes > 0; }

void read_row(const Matrix& matrix, int row, float* out) {
    const Layout layout = layout_of(matrix.format);
    const uint8_t* group = matrix.block(row / kChannels);
    for (int i = 0; i < matrix.groups(); i++, group += layout.group_bytes(), out += layout.inputs) {
        if (layout.quantised())
            read_quantised(layout, group, row % kChannels, out);
        else
            read_plain(matrix.format, group, row % kChannels, out);
    }
}

}  // namespace slipstream
