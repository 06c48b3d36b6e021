// The KV cache: blocks of 64 positions that sessions share until one of them writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace slipstream {

struct CacheShape {
    int layers = 0;
    int heads = 0;      // key-value heads
    int head_size = 0;  // of keys and of values

    // A block holds, for each layer and head, its keys [64 / 16, head_size, 16] and then its values
    // [64, head_size], both half precision.
    size_t head_bytes() const { return size_t(4) * kKeyBlock * head_size; }
    size_t block_bytes() const { return head_bytes() * heads * layers; }
};

// One sequence: `length` committed tokens, then `held` draft rows of a layer subset, then whatever the last forward
// wrote. A slot is a place in the cache; committed tokens lie in the slots of their positions.
struct Session {
    bool open = false;
    int length = 0;
    int held = 0;
    std::vector<int> blocks;
    // The last forward's rows, until something is committed or another forward comes.
    std::vector<int> parents;
    bool subset = false;  // they went through a subset of the layers

    int used() const { return length + held; }
};

class Cache {
   public:
    Cache(CacheShape shape, int sessions, int context);

    int open();  // -1 if all are in use
    void close(int session);
    int fork(int session, int length);  // -1 if all are in use
    void truncate(int session, int length);
    // Keeps rows of the last forward: `path` as indices of its rows, each the parent of the next.
    void commit(int session, const std::vector<int>& path);
    // The same for rows of a layer subset: the next forward sees them, the next full forward forgets them.
    void hold(int session, const std::vector<int>& path);

    // Makes slots [used, used + rows) writable, and forgets the rows before.
    void prepare(int session, std::vector<int> parents, bool subset);

    Session& at(int session) { return sessions_.at(session); }
    int context() const { return context_; }
    int free_blocks() const { return int(free_.size()); }
    const CacheShape& shape() const { return shape_; }
    static size_t bytes_for(CacheShape shape, int sessions, int context);

    uint16_t* keys(int block, int layer, int head) const {
        return reinterpret_cast<uint16_t*>(memory_.data() + block * shape_.block_bytes() +
                                           (size_t(layer) * shape_.heads + head) * shape_.head_bytes());
    }
    uint16_t* values(int block, int layer, int head) const {
        return keys(block, layer, head) + size_t(kKeyBlock) * shape_.head_size;
    }

   private:
    int take_block();
    void give_back(int block);
    void drop_blocks(Session& session, int kept);
    void keep(Session& session, int first, const std::vector<int>& path);
    void move_slot(const Session& session, int from, int to);

    CacheShape shape_;
    int context_;
    Memory memory_;
    std::vector<Session> sessions_;
    std::vector<int> owners_;  // sessions that share a block
    std::vector<int> free_;
};

}  // namespace slipstream
