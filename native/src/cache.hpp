// The KV cache: blocks of 64 positions that sessions share until one of them writes. Layers that see equally far have
// blocks in common; where that is a window, blocks that it has left behind are taken when no other is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace slipstream {

struct Limits {
    int sessions = 1;
    int context = 0;  // tokens of a session
    int rows = 0;     // of a forward, held ones before them included where a layer has a window
};

struct CacheShape {
    int heads = 0;             // key-value heads
    int head_size = 0;         // of keys and of values
    std::vector<int> windows;  // of each layer: how many positions a row sees, the last of them its own; 0 for all

    // A block holds, for each of its layers and each head, keys [64 / 16, head_size, 16] and then values
    // [64, head_size], both half precision.
    size_t head_bytes() const { return size_t(4) * kKeyBlock * head_size; }
    int layers() const { return int(windows.size()); }
};

// Whatever window a layer has, its cache keeps the keys and values that so many tokens taken back bring into it.
constexpr int kLongestDraft = 64;

// In a session's list of blocks: one that a window has left behind, and that others have now.
constexpr int kGone = -1;

// One sequence: `length` committed tokens, then `held` draft rows of a layer subset, then whatever the last forward
// wrote. A slot is a place in the cache; committed tokens lie in the slots of their positions.
struct Session {
    bool open = false;
    int length = 0;
    int held = 0;
    std::vector<std::vector<int>> blocks;  // of each store
    // The last forward's rows, until something is committed or another forward comes.
    std::vector<int> parents;
    bool subset = false;  // they went through a subset of the layers

    int used() const { return length + held; }
};

class Cache {
   public:
    Cache(const CacheShape& shape, const Limits& limits);

    int open();  // -1 if all are in use
    void close(int session);
    int fork(int session, int length);  // -1 if all are in use
    void truncate(int session, int length);
    // The most tokens, up to `length`, that `fork` and `truncate` can keep: all of them, or none where what a window
    // would see from there is gone.
    int reachable(int session, int length) const;
    // Keeps rows of the last forward: `path` as indices of its rows, each the parent of the next.
    void commit(int session, const std::vector<int>& path);
    // The same for rows of a layer subset: the next forward sees them, the next full forward forgets them.
    void hold(int session, const std::vector<int>& path);

    // Makes slots [used, used + rows) writable, and forgets the rows before.
    void prepare(int session, std::vector<int> parents, bool subset);

    Session& at(int session) { return sessions_.at(session); }
    const Session& at(int session) const { return sessions_.at(session); }
    // A session's blocks in a layer.
    const std::vector<int>& blocks(int session, int layer) const { return at(session).blocks[places_[layer].store]; }
    int context() const { return limits_.context; }
    int free_blocks() const;
    const CacheShape& shape() const { return shape_; }
    // How far layers see, each distance once.
    std::vector<int> windows() const;
    static size_t bytes_for(const CacheShape& shape, const Limits& limits);

    uint16_t* keys(int block, int layer, int head) const {
        const Place place = places_[layer];
        return reinterpret_cast<uint16_t*>(stores_[place.store].block(block) +
                                           (size_t(place.index) * shape_.heads + head) * shape_.head_bytes());
    }
    uint16_t* values(int block, int layer, int head) const {
        return keys(block, layer, head) + size_t(kKeyBlock) * shape_.head_size;
    }

   private:
    // Blocks of the layers that see equally far.
    struct Store {
        int window;
        size_t block_bytes;
        Memory memory;
        std::vector<int> owners;  // sessions that share a block
        std::vector<int> free;

        uint8_t* block(int index) const { return memory.data() + index * block_bytes; }
        void give_back(int block);
    };
    // Where a layer is.
    struct Place {
        int store;
        int index;  // in its blocks
    };

    void make_writable(int store, std::vector<int>& blocks, int index, bool needed);
    int take_block(int store);
    bool drop_oldest(int store);
    int droppable(const Session& session, int store) const;
    void drop_blocks(Session& session, int kept);
    void keep(Session& session, int first, const std::vector<int>& path);
    void move_slot(const Session& session, int from, int to);

    CacheShape shape_;
    Limits limits_;
    std::vector<Store> stores_;
    std::vector<Place> places_;  // of each layer
    std::vector<Session> sessions_;
};

}  // namespace slipstream
