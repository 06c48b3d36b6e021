#include "cache.hpp"

#include <cstring>

#include "require.hpp"

namespace slipstream {
namespace {

int blocks_for(int positions) { return (positions + kKeyBlock - 1) / kKeyBlock; }

}  // namespace

size_t Cache::bytes_for(CacheShape shape, int sessions, int context) {
    return shape.block_bytes() * blocks_for(context) * sessions;
}

Cache::Cache(CacheShape shape, int sessions, int context)
    : shape_(shape), context_(context), memory_(bytes_for(shape, sessions, context)), sessions_(sessions) {
    const int count = sessions * blocks_for(context);
    owners_.assign(count, 0);
    for (int block = count - 1; block >= 0; block--) free_.push_back(block);
}

int Cache::open() {
    for (size_t i = 0; i < sessions_.size(); i++) {
        if (sessions_[i].open) continue;
        sessions_[i] = Session();
        sessions_[i].open = true;
        return int(i);
    }
    return -1;
}

void Cache::close(int session) {
    Session& closed = at(session);
    drop_blocks(closed, 0);
    closed = Session();
}

int Cache::fork(int session, int length) {
    require(length >= 0 && length <= at(session).length, "a fork keeps committed tokens only");
    const int other = open();
    if (other < 0) return other;
    const Session& from = at(session);
    Session& to = at(other);
    to.length = length;
    to.blocks.assign(from.blocks.begin(), from.blocks.begin() + blocks_for(length));
    for (int block : to.blocks) owners_[block]++;
    return other;
}

void Cache::truncate(int session, int length) {
    Session& cut = at(session);
    require(length >= 0 && length <= cut.length, "a session can only become shorter");
    cut.length = length;
    cut.held = 0;
    cut.parents.clear();
    drop_blocks(cut, blocks_for(length));
}

void Cache::commit(int session, const std::vector<int>& path) {
    Session& grown = at(session);
    require(path.empty() || !grown.subset, "rows of a layer subset cannot be committed");
    keep(grown, grown.length, path);
    grown.length += int(path.size());
}

void Cache::hold(int session, const std::vector<int>& path) {
    Session& grown = at(session);
    require(path.empty() || grown.subset, "only rows of a layer subset are held");
    keep(grown, grown.used(), path);
    grown.held += int(path.size());
}

void Cache::prepare(int session, std::vector<int> parents, bool subset) {
    Session& writer = at(session);
    if (!subset) writer.held = 0;  // drafts were for other drafts only
    const int first = writer.used(), last = first + int(parents.size());
    require(last <= context_, "the session's context is full");
    writer.parents = std::move(parents);
    writer.subset = subset;
    for (int index = first / kKeyBlock; index < blocks_for(last); index++) {
        if (index == int(writer.blocks.size())) {
            writer.blocks.push_back(take_block());
        } else if (owners_[writer.blocks[index]] > 1) {
            const int shared = writer.blocks[index], own = take_block();
            if (index * kKeyBlock < first) std::memcpy(keys(own, 0, 0), keys(shared, 0, 0), shape_.block_bytes());
            give_back(shared);
            writer.blocks[index] = own;
        }
    }
}

// Rows lie in the slots that follow `first`, in the order of the forward; the path's move to the front.
void Cache::keep(Session& session, int first, const std::vector<int>& path) {
    int parent = -1;
    for (const int row : path) {
        require(row >= 0 && row < int(session.parents.size()), "a row that the last forward did not compute");
        require(session.parents[row] == parent, "a row whose parent is not the one before it in the path");
        parent = row;
    }
    for (int i = 0; i < int(path.size()); i++)
        if (path[i] != i) move_slot(session, first + path[i], first + i);
    session.parents.clear();
}

void Cache::move_slot(const Session& session, int from, int to) {
    const int size = shape_.head_size;
    const int from_block = session.blocks[from / kKeyBlock], to_block = session.blocks[to / kKeyBlock];
    const auto key_offset = [&](int slot) {
        return slot % kKeyBlock / kChannels * kChannels * size + slot % kChannels;
    };
    for (int layer = 0; layer < shape_.layers; layer++) {
        for (int head = 0; head < shape_.heads; head++) {
            const uint16_t* source = keys(from_block, layer, head) + key_offset(from);
            uint16_t* target = keys(to_block, layer, head) + key_offset(to);
            for (int d = 0; d < size; d++) target[d * kChannels] = source[d * kChannels];
            std::memcpy(values(to_block, layer, head) + to % kKeyBlock * size,
                        values(from_block, layer, head) + from % kKeyBlock * size, size * sizeof(uint16_t));
        }
    }
}

int Cache::take_block() {
    require(!free_.empty(), "no block is free although every session has its share");
    const int block = free_.back();
    free_.pop_back();
    owners_[block] = 1;
    return block;
}

void Cache::give_back(int block) {
    if (--owners_[block] == 0) free_.push_back(block);
}

void Cache::drop_blocks(Session& session, int kept) {
    for (size_t i = kept; i < session.blocks.size(); i++) give_back(session.blocks[i]);
    if (kept < int(session.blocks.size())) session.blocks.resize(kept);
}

}  // namespace slipstream
