#include "cache.hpp"

#include <algorithm>
#include <cstring>

#include "require.hpp"

namespace slipstream {
namespace {

int blocks_for(int positions) { return (positions + kKeyBlock - 1) / kKeyBlock; }

// Blocks that a session may need at once, where it holds only what windows and rows to come need.
int blocks_for_session(int window, const Limits& limits) {
    const int all = blocks_for(limits.context);
    return window > 0 ? std::min(all, blocks_for(window + kLongestDraft + limits.rows) + 1) : all;
}

size_t block_bytes(const CacheShape& shape, int window) {
    return shape.head_bytes() * shape.heads * std::count(shape.windows.begin(), shape.windows.end(), window);
}

std::vector<int> distinct(std::vector<int> numbers) {
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    return numbers;
}

}  // namespace

size_t Cache::bytes_for(const CacheShape& shape, const Limits& limits) {
    size_t bytes = 0;
    for (int window : distinct(shape.windows))
        bytes += block_bytes(shape, window) * blocks_for_session(window, limits) * limits.sessions;
    return bytes;
}

Cache::Cache(const CacheShape& shape, const Limits& limits)
    : shape_(shape), limits_(limits), places_(shape.layers()), sessions_(limits.sessions) {
    for (int window : distinct(shape.windows)) {
        const int count = blocks_for_session(window, limits) * limits.sessions;
        const size_t bytes = block_bytes(shape, window);
        Store store{window, bytes, Memory(bytes * count), std::vector<int>(count, 0), {}};
        for (int block = count - 1; block >= 0; block--) store.free.push_back(block);
        int index = 0;
        for (int layer = 0; layer < shape.layers(); layer++)
            if (shape.windows[layer] == window) places_[layer] = {int(stores_.size()), index++};
        stores_.push_back(std::move(store));
    }
}

std::vector<int> Cache::windows() const {
    std::vector<int> windows;
    for (const Store& store : stores_) windows.push_back(store.window);
    return windows;
}

int Cache::open() {
    for (size_t i = 0; i < sessions_.size(); i++) {
        if (sessions_[i].open) continue;
        sessions_[i] = Session();
        sessions_[i].open = true;
        sessions_[i].blocks.resize(stores_.size());
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
    require(reachable(session, length) == length, "a window would see what is gone");
    const int other = open();
    if (other < 0) return other;
    const Session& from = at(session);
    Session& to = at(other);
    to.length = length;
    for (size_t store = 0; store < stores_.size(); store++) {
        const auto begin = from.blocks[store].begin();
        to.blocks[store].assign(begin, begin + blocks_for(length));
        for (int block : to.blocks[store])
            if (block != kGone) stores_[store].owners[block]++;
    }
    return other;
}

void Cache::truncate(int session, int length) {
    Session& cut = at(session);
    require(length >= 0 && length <= cut.length, "a session can only become shorter");
    require(reachable(session, length) == length, "a window would see what is gone");
    cut.length = length;
    cut.held = 0;
    cut.parents.clear();
    drop_blocks(cut, blocks_for(length));
}

int Cache::reachable(int session, int length) const {
    for (size_t store = 0; store < stores_.size(); store++) {
        const auto& blocks = at(session).blocks[store];
        const size_t first = std::max(0, length + 1 - stores_[store].window) / kKeyBlock;  // of what the next row sees
        if (stores_[store].window > 0 && length > 0 && first < blocks.size() && blocks[first] == kGone) return 0;
    }
    return length;
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
    require(last <= limits_.context, "the session's context is full");
    const bool windowed = stores_.back().window > 0;
    require(!windowed || last - writer.length <= limits_.rows, "more rows held than a window's cache has room for");
    writer.parents = std::move(parents);
    writer.subset = subset;
    for (int store = 0; store < int(stores_.size()); store++)
        for (int index = first / kKeyBlock; index < blocks_for(last); index++)
            make_writable(store, writer.blocks[store], index, index * kKeyBlock < first);
}

// A block of the session's own at `index`; where another session has it, too, with what is in it if that is `needed`.
void Cache::make_writable(int store, std::vector<int>& blocks, int index, bool needed) {
    Store& memory = stores_[store];
    if (index == int(blocks.size())) return blocks.push_back(take_block(store));
    const int shared = blocks[index];
    if (memory.owners[shared] == 1) return;
    blocks[index] = take_block(store);
    if (needed) std::memcpy(memory.block(blocks[index]), memory.block(shared), memory.block_bytes);
    memory.give_back(shared);
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
    const auto key_offset = [&](int slot) {
        return slot % kKeyBlock / kChannels * kChannels * size + slot % kChannels;
    };
    for (int layer = 0; layer < shape_.layers(); layer++) {
        const auto& blocks = session.blocks[places_[layer].store];
        const int from_block = blocks[from / kKeyBlock], to_block = blocks[to / kKeyBlock];
        for (int head = 0; head < shape_.heads; head++) {
            const uint16_t* source = keys(from_block, layer, head) + key_offset(from);
            uint16_t* target = keys(to_block, layer, head) + key_offset(to);
            for (int d = 0; d < size; d++) target[d * kChannels] = source[d * kChannels];
            std::memcpy(values(to_block, layer, head) + to % kKeyBlock * size,
                        values(from_block, layer, head) + from % kKeyBlock * size, size * sizeof(uint16_t));
        }
    }
}

int Cache::free_blocks() const {
    size_t count = 0;
    for (const Store& store : stores_) count += store.free.size();
    return int(count);
}

int Cache::take_block(int store) {
    auto& free = stores_[store].free;
    while (free.empty()) require(drop_oldest(store), "no block is free although every session has its share");
    const int block = free.back();
    free.pop_back();
    stores_[store].owners[block] = 1;
    return block;
}

// Gives back the oldest block of the session that has most blocks which its window has left behind: whoever goes back
// or forks wants the later ones. False where nobody has any.
bool Cache::drop_oldest(int store) {
    const auto most = std::max_element(sessions_.begin(), sessions_.end(), [&](const Session& a, const Session& b) {
        return droppable(a, store) < droppable(b, store);
    });
    if (droppable(*most, store) == 0) return false;
    auto& blocks = most->blocks[store];
    int& oldest = *std::find_if(blocks.begin(), blocks.end(), [](int block) { return block != kGone; });
    stores_[store].give_back(oldest);
    oldest = kGone;
    return true;
}

int Cache::droppable(const Session& session, int store) const {
    const int window = stores_[store].window;
    if (!session.open || window == 0) return 0;
    const auto& blocks = session.blocks[store];
    const int behind = std::max(0, session.length + 1 - window - kLongestDraft) / kKeyBlock;
    return behind - int(std::count(blocks.begin(), blocks.begin() + behind, kGone));
}

void Cache::Store::give_back(int block) {
    if (--owners[block] == 0) free.push_back(block);
}

void Cache::drop_blocks(Session& session, int kept) {
    for (size_t store = 0; store < session.blocks.size(); store++) {
        auto& blocks = session.blocks[store];
        for (size_t i = kept; i < blocks.size(); i++)
            if (blocks[i] != kGone) stores_[store].give_back(blocks[i]);
        if (kept < int(blocks.size())) blocks.resize(kept);
    }
}

}  // namespace slipstream
