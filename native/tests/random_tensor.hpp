// Random tensors as they lie in a file.
#pragma once

#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "half.hpp"
#include "weights.hpp"

namespace slipstream::tests {

constexpr Format kFormats[] = {Format::F32,  Format::F16,  Format::BF16, Format::Q4_0,   Format::Q4_1,
                               Format::Q8_0, Format::Q5_0, Format::Q5_1, Format::IQ4_NL, Format::Q2_K,
                               Format::Q3_K, Format::Q4_K, Format::Q5_K, Format::Q6_K};
constexpr int kShortFormats = 9;  // the first of them take rows of any multiple of 32

// Where a group in the file has its scale in half precision; a minimum lies behind it.
constexpr size_t scale_place(Format format) {
    switch (format) {
        case Format::Q2_K: return 80;
        case Format::Q3_K: return 108;
        case Format::Q6_K: return 208;
        default: return 0;
    }
}

// The largest scale within a super-block.
constexpr int largest_scale(Format format) {
    switch (format) {
        case Format::Q2_K: return 15;
        case Format::Q3_K: return 32;
        case Format::Q4_K:
        case Format::Q5_K: return 63;
        case Format::Q6_K: return 128;
        default: return 1;
    }
}

// [rows, columns] in the file's layout; its numbers have about the size that keeps what they multiply.
inline std::vector<uint8_t> random_tensor(Format format, int rows, int columns, std::mt19937& chance) {
    const Layout layout = layout_of(format);
    std::vector<uint8_t> bytes(size_t(rows) * (columns / layout.inputs) * layout.file_bytes);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(float(columns)));
    for (auto& byte : bytes) byte = uint8_t(chance());
    for (size_t group = 0; group < bytes.size(); group += layout.file_bytes) {
        uint8_t* start = bytes.data() + group;
        const auto put = [&](size_t at, uint16_t half) { std::memcpy(start + at, &half, 2); };
        if (layout.quantised()) {
            const int largest_code = layout.minimum ? (1 << layout.code_bits()) - 1 : layout.offset;
            const auto scale = float(largest_scale(format));
            put(scale_place(format), float_to_half(normal(chance) / (scale * float(largest_code))));
            if (layout.minimum) put(scale_place(format) + 2, float_to_half(normal(chance) / scale));
            continue;
        }
        for (int i = 0; i < kGroup; i++) {
            const float number = normal(chance);
            uint32_t bits;
            std::memcpy(&bits, &number, 4);
            if (format == Format::F32) std::memcpy(start + 4 * i, &bits, 4);
            if (format == Format::F16) put(2 * i, float_to_half(number));
            if (format == Format::BF16) put(2 * i, uint16_t(bits >> 16));
        }
    }
    return bytes;
}

// A file that is gone with this object.
class TensorFile {
   public:
    TensorFile() {
        char path[] = "/tmp/slipstream-tests-XXXXXX";
        file_ = fdopen(mkstemp(path), "wb");
        path_ = path;
    }
    ~TensorFile() { std::remove(path_.c_str()); }
    TensorFile(const TensorFile&) = delete;

    // Returns the tensor's index.
    int add(Format format, int rows, int columns, std::mt19937& chance) {
        const auto bytes = random_tensor(format, rows, columns, chance);
        places_.push_back({"tensor" + std::to_string(places_.size()), int(format), rows, columns, 0, size_});
        size_ += int64_t(std::fwrite(bytes.data(), 1, bytes.size(), file_));
        return int(places_.size()) - 1;
    }

    const std::string& path() const { return path_; }
    // Nothing is added after this.
    const std::vector<TensorPlace>& places() {
        if (file_) std::fclose(file_);
        file_ = nullptr;
        return places_;
    }

   private:
    std::string path_;
    std::FILE* file_;
    std::vector<TensorPlace> places_;
    int64_t size_ = 0;
};

}  // namespace slipstream::tests
