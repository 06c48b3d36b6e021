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

constexpr Format kFormats[] = {Format::F32, Format::F16, Format::BF16, Format::Q4_0, Format::Q4_1, Format::Q8_0};

// [rows, columns] in the file's layout; its numbers have about the size that keeps what they multiply.
inline std::vector<uint8_t> random_tensor(Format format, int rows, int columns, std::mt19937& chance) {
    const size_t group_bytes = file_group_bytes(format);
    std::vector<uint8_t> bytes(size_t(rows) * (columns / kGroup) * group_bytes);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(float(columns)));
    for (auto& byte : bytes) byte = uint8_t(chance());
    for (size_t group = 0; group < bytes.size(); group += group_bytes) {
        uint8_t* start = bytes.data() + group;
        const auto put = [&](size_t at, uint16_t half) { std::memcpy(start + at, &half, 2); };
        if (is_quantised(format)) {
            const float size = format == Format::Q8_0 ? 128 : 8;
            put(0, float_to_half(normal(chance) / size));
            if (format == Format::Q4_1) put(2, float_to_half(normal(chance)));
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
        places_.push_back({"tensor" + std::to_string(places_.size()), int(format), rows, columns, size_});
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
