#include "weights.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace slipstream {
namespace {

constexpr size_t kPiece = size_t(1) << 20;  // bytes that a thread reads at once
constexpr int64_t kLargest = INT_MAX / 2;   // rows or columns

class File {
   public:
    explicit File(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (descriptor_ < 0) throw BadFile(std::string("it cannot be read: ") + std::strerror(errno));
        struct stat status;
        if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
            ::close(descriptor_);
            throw BadFile("it is not a regular file");
        }
        size_ = status.st_size;
    }
    ~File() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

    int64_t size() const { return size_; }

    // False if the bytes are not there (any more).
    bool read(uint8_t* target, size_t count, int64_t offset) const {
        while (count > 0) {
            const ssize_t got = pread(descriptor_, target, count, offset);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            target += got;
            offset += got;
            count -= got;
        }
        return true;
    }

   private:
    int descriptor_;
    int64_t size_ = 0;
};

Matrix shape_of(const TensorPlace& place) {
    if (!is_known(place.format)) throw BadFile(place.name + " has a type that the native runtime does not know");
    if (place.rows < 1 || place.columns < 1 || place.rows > kLargest || place.columns > kLargest)
        throw BadFile(place.name + " has an impossible shape");
    const int inputs = layout_of(Format(place.format)).inputs;
    if (place.columns % inputs != 0)
        throw BadFile(place.name + " has rows that are no multiple of " + std::to_string(inputs));
    Matrix matrix;
    matrix.format = Format(place.format);
    matrix.rows = int(place.rows);
    matrix.columns = int(place.columns);
    return matrix;
}

int64_t file_row_bytes(const Matrix& matrix) { return int64_t(matrix.groups()) * layout_of(matrix.format).file_bytes; }

void check_place(const TensorPlace& place, const Matrix& matrix, int64_t file_size) {
    const int64_t bytes = file_row_bytes(matrix) * matrix.rows;  // below 2^62: both factors are below 2^31 x 4
    if (place.offset < 0 || place.offset > file_size || bytes > file_size - place.offset)
        throw BadFile(place.name + " lies beyond the end of the file");
}

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// A run of blocks of one tensor.
struct Piece {
    int tensor;
    int first_block;
    int blocks;
};

std::vector<Piece> pieces_of(const std::vector<Matrix>& matrices) {
    std::vector<Piece> pieces;
    for (size_t tensor = 0; tensor < matrices.size(); tensor++) {
        const Matrix& matrix = matrices[tensor];
        const int step = std::max(1, int(kPiece / (file_row_bytes(matrix) * kChannels)));
        for (int block = 0; block < matrix.blocks(); block += step)
            pieces.push_back({int(tensor), block, std::min(step, matrix.blocks() - block)});
    }
    return pieces;
}

}  // namespace

size_t Weights::bytes_for(const std::vector<TensorPlace>& places) {
    size_t bytes = 0;
    for (const TensorPlace& place : places) bytes += padded(shape_of(place).bytes());
    return bytes;
}

Weights::Weights(const std::vector<std::string>& paths, std::vector<TensorPlace> places, ThreadPool& pool,
                 const Progress& progress)
    : places_(std::move(places)) {
    std::vector<File> files;
    for (const std::string& path : paths) files.emplace_back(path);
    for (const TensorPlace& place : places_) {
        matrices_.push_back(shape_of(place));
        check_place(place, matrices_.back(), files.at(place.file).size());
    }
    arena_ = Memory(bytes_for(places_));
    uint8_t* next = arena_.data();
    for (Matrix& matrix : matrices_) {
        matrix.data = next;
        next += padded(matrix.bytes());
    }

    const std::vector<Piece> pieces = pieces_of(matrices_);
    std::atomic<size_t> taken{0}, done{0};
    std::atomic<bool> failed{false}, abandoned{false};
    const auto repack_piece = [&](const Piece& piece, std::vector<uint8_t>& buffer) {
        const Matrix& matrix = matrices_[piece.tensor];
        const int64_t row_bytes = file_row_bytes(matrix);
        const int first = piece.first_block * kChannels;
        const int rows = std::min(piece.blocks * kChannels, matrix.rows - first);
        buffer.resize(rows * row_bytes);
        const TensorPlace& place = places_[piece.tensor];
        if (!files[place.file].read(buffer.data(), buffer.size(), place.offset + first * row_bytes)) return false;
        for (int row = 0; row < rows; row += kChannels) {
            auto* target = const_cast<uint8_t*>(matrix.block((first + row) / kChannels));
            repack_block(matrix.format, buffer.data() + row * row_bytes, std::min(kChannels, rows - row),
                         matrix.groups(), target);
        }
        return true;
    };
    pool.run([&](int thread) {
        try {
            std::vector<uint8_t> buffer;
            for (size_t i; !failed && !abandoned && (i = taken.fetch_add(1)) < pieces.size();) {
                if (!repack_piece(pieces[i], buffer)) failed = true;
                const size_t finished = done.fetch_add(1) + 1;
                if (thread == 0 && progress && !progress(double(finished) / pieces.size())) abandoned = true;
            }
        } catch (...) {  // no memory for the buffer
            failed = true;
        }
    });
    if (abandoned) throw Abandoned();
    if (failed) throw BadFile("it could not be read to its end");
}

std::vector<float> Weights::vector(int index) const {
    const Matrix& matrix = matrices_.at(index);
    if (matrix.rows != 1) throw std::invalid_argument(name(index) + " is a matrix where a vector is needed");
    std::vector<float> numbers(matrix.columns);
    read_row(matrix, 0, numbers.data());
    return numbers;
}

}  // namespace slipstream
