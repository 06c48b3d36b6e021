// Memory for weights, caches and buffers: zeroed pages that exist when they are first touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace slipstream {

// A region of pages, huge ones where the system gives them: a forward streams all weights, and with pages of
// 4 KiB the address translation alone costs a fifth of the bandwidth.
class Memory {
   public:
    Memory() = default;
    // Throws std::bad_alloc.
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }

    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

   private:
    void swap(Memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace slipstream
