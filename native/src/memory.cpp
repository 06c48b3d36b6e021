#include "memory.hpp"

#include <sys/mman.h>

#include <new>

namespace slipstream {
namespace {

constexpr size_t kHugePage = size_t(2) << 20;

}  // namespace

Memory::Memory(size_t bytes) {
    if (bytes == 0) return;
    const bool large = bytes >= kHugePage / 2;
    const size_t unit = large ? kHugePage : 4096;
    if (bytes > (size_t(1) << 46)) throw std::bad_alloc();
    size_ = (bytes + unit - 1) / unit * unit;
    // Ask for one huge page more and give the ends back: mmap aligns to small pages only.
    const size_t mapped = large ? size_ + kHugePage : size_;
    void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        size_ = 0;
        throw std::bad_alloc();
    }
    auto* start = static_cast<uint8_t*>(raw);
    data_ = start;
    if (large) {
        const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
        data_ = start + before;
        if (before) munmap(start, before);
        if (before < kHugePage) munmap(data_ + size_, kHugePage - before);
#ifdef MADV_HUGEPAGE
        madvise(data_, size_, MADV_HUGEPAGE);  // may be refused; everything works without
#endif
    }
}

Memory::~Memory() {
    if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace slipstream
