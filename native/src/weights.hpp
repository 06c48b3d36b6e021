// A model file's tensors, repacked into one arena.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "matrix.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace slipstream {

// A tensor as the file's header describes it. Nothing here is trusted.
struct TensorPlace {
    std::string name;
    int format = 0;       // the file's number for its type
    int64_t rows = 0;     // 1 for a vector
    int64_t columns = 0;  // numbers in a row
    int file = 0;         // which of the model's files has it
    int64_t offset = 0;   // from the start of that file, in bytes
};

// Called on the loading thread with the fraction done; returning false abandons the load.
using Progress = std::function<bool(double)>;

// The file or a tensor in it cannot be used; the message is a clause about it.
struct BadFile : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Abandoned : std::exception {};

class Weights {
   public:
    // Reads and repacks on all threads. Memory is the arena and a megabyte or so for each thread.
    // Throws BadFile, std::bad_alloc, Abandoned.
    Weights(const std::vector<std::string>& paths, std::vector<TensorPlace> places, ThreadPool& pool,
            const Progress& progress);

    const Matrix& matrix(int index) const { return matrices_.at(index); }
    const std::string& name(int index) const { return places_.at(index).name; }
    int count() const { return int(places_.size()); }
    // [columns] floats of a tensor of one row, in memory of their own.
    std::vector<float> vector(int index) const;
    size_t bytes() const { return arena_.size(); }

    // What the arena will take. Throws BadFile for shapes that cannot be.
    static size_t bytes_for(const std::vector<TensorPlace>& places);

   private:
    std::vector<TensorPlace> places_;
    std::vector<Matrix> matrices_;
    Memory arena_;
};

}  // namespace slipstream
