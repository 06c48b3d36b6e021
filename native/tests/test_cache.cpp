// The KV cache against a list of what each session holds.
#include "cache.hpp"

#include <algorithm>
#include <random>
#include <stdexcept>

#include "check.hpp"

namespace slipstream {
namespace {

const CacheShape kShape{2, 32, {0, 0}};
constexpr int kSessions = 4, kContext = 200;
constexpr int kBlocks = kSessions * 4;
// The second layer sees 30 positions: four blocks for each session, where the first has seven.
const CacheShape kWindowed{2, 32, {0, 30, 0}};
constexpr int kRows = 40;

struct Expected {
    int session;
    std::vector<uint16_t> tokens, held;
    int base = 0;  // length after the last rollback or fork
};

// Sessions that "compute" rows by writing a number of their own everywhere in a slot.
class Play {
   public:
    Play(uint32_t seed, const CacheShape& shape, const Limits& limits)
        : chance_(seed), limits_(limits), cache_(shape, limits), blocks_(cache_.free_blocks()) {
        open();
    }

    void step() {
        switch (chance_() % 14) {
            case 0: return truncate();
            case 1: return fork();
            case 2: return replace();
            case 3:
            case 4:
            case 5: return rows(true);
            case 6:
            case 7:
            case 8:
            case 9: return rows(false);
            default: return grow();
        }
    }

    void check() {
        for (const Expected& one : expected_) {
            CHECK(cache_.at(one.session).length == int(one.tokens.size()));
            CHECK(cache_.at(one.session).held == int(one.held.size()));
            std::vector<uint16_t> all = one.tokens;
            all.insert(all.end(), one.held.begin(), one.held.end());
            for (int slot = 0; slot < int(all.size()); slot++) CHECK(holds(one.session, slot, all[slot]));
        }
    }

    void close() {
        for (const Expected& one : expected_) cache_.close(one.session);
        CHECK(cache_.free_blocks() == blocks_);
    }
    int slots_that_are_gone() const { return gone_; }

   private:
    void open() { expected_.push_back({cache_.open(), {}, {}, 0}); }
    Expected& any() { return expected_[chance_() % expected_.size()]; }

    // Windows always leave room for a draft to be taken back.
    bool can_keep(const Expected& one, int length) {
        const int kept = cache_.reachable(one.session, length);
        const bool is_draft = length >= one.base && length + kLongestDraft >= int(one.tokens.size());
        CHECK(kept == length || (kept == 0 && !is_draft));
        return kept == length;
    }

    void truncate() {
        Expected& one = any();
        const int length = int(one.tokens.size() - chance_() % (one.tokens.size() / 2 + 1));
        if (!can_keep(one, length))
            return CHECK(tests::throws<std::logic_error>([&] { cache_.truncate(one.session, length); }));
        cache_.truncate(one.session, length);
        one.tokens.resize(length);
        one.held.clear();
        one.base = length;
    }

    void fork() {
        Expected one = any();
        const int length = chance_() % 2 ? int(one.tokens.size()) : int(chance_() % (one.tokens.size() + 1));
        if (!can_keep(one, length))
            return CHECK(tests::throws<std::logic_error>([&] { cache_.fork(one.session, length); }));
        const int other = cache_.fork(one.session, length);
        CHECK((other < 0) == (int(expected_.size()) == limits_.sessions));
        if (other < 0) return;
        one.tokens.resize(length);
        expected_.push_back({other, one.tokens, {}, length});
    }

    void replace() {
        Expected& one = any();
        cache_.close(one.session);
        expected_.erase(expected_.begin() + (&one - expected_.data()));
        open();
    }

    // A part of a prompt.
    void grow() {
        Expected& one = any();
        const int before = int(one.tokens.size()), count = std::min(kRows, limits_.context - before);
        one.held.clear();
        std::vector<int> chain, path;
        for (int row = 0; row < count; row++) {
            chain.push_back(row - 1);
            path.push_back(row);
        }
        cache_.prepare(one.session, chain, false);
        for (int row = 0; row < count; row++) {
            one.tokens.push_back(uint16_t(next_ += 100));
            write(one.session, before + row, one.tokens.back());
        }
        cache_.commit(one.session, path);
    }

    // A forward: a tree, one path of which is kept, sometimes after a fork.
    void rows(bool partial) {
        const size_t index = chance_() % expected_.size();
        const int session = expected_[index].session;
        const int before = int(expected_[index].tokens.size() + (partial ? expected_[index].held.size() : 0));
        const int held = partial ? int(expected_[index].held.size()) : 0;
        const int count = std::min<int>({1 + int(chance_() % kRows), limits_.context - before, limits_.rows - held});
        if (count <= 0) return;
        std::vector<int> parents;
        for (int row = 0; row < count; row++) parents.push_back(int(chance_() % (row + 1)) - 1);
        cache_.prepare(session, parents, partial);
        if (!partial) expected_[index].held.clear();
        const uint16_t first = uint16_t(next_ += 100);
        for (int row = 0; row < count; row++) write(session, before + row, uint16_t(first + row));
        if (chance_() % 4 == 0) fork();
        std::vector<int> path;
        for (int row = int(chance_() % (count + 1)) - 1; row >= 0; row = parents[row]) path.insert(path.begin(), row);
        auto& kept = partial ? expected_[index].held : expected_[index].tokens;
        for (int row : path) kept.push_back(uint16_t(first + row));
        if (partial)
            cache_.hold(session, path);
        else
            cache_.commit(session, path);
    }

    // Calls body(number, index) for all numbers of a slot that are there: of what a window sees, all.
    template <class Body>
    void each_number(int session, int slot, Body&& body) {
        const int size = cache_.shape().head_size, place = slot % kKeyBlock;
        uint16_t index = 0;
        for (int layer = 0; layer < cache_.shape().layers(); layer++) {
            const int block = cache_.blocks(session, layer).at(slot / kKeyBlock);
            const int window = cache_.shape().windows[layer];
            if (block == kGone) {
                gone_++;
                index += uint16_t(2 * cache_.shape().heads * size);
                CHECK(window > 0 && slot + window < cache_.at(session).length + 1);
                continue;
            }
            for (int head = 0; head < cache_.shape().heads; head++)
                for (int d = 0; d < size; d++) {
                    const int column = place / kChannels * kChannels * size + place % kChannels;
                    body(cache_.keys(block, layer, head)[column + d * kChannels], index++);
                    body(cache_.values(block, layer, head)[place * size + d], index++);
                }
        }
    }
    void write(int session, int slot, uint16_t number) {
        each_number(session, slot, [&](uint16_t& there, uint16_t index) { there = uint16_t(number + index); });
    }
    bool holds(int session, int slot, uint16_t number) {
        bool same = true;
        each_number(session, slot, [&](uint16_t& there, uint16_t index) { same &= there == uint16_t(number + index); });
        return same;
    }

    std::mt19937 chance_;
    const Limits limits_;
    Cache cache_;
    const int blocks_;
    int gone_ = 0;
    std::vector<Expected> expected_;
    uint32_t next_ = 0;
};

TEST(sessions_hold_what_was_committed) {
    for (uint32_t seed = 0; seed < 40; seed++) {
        Play play(seed, kShape, {kSessions, kContext, kContext});
        for (int step = 0; step < 80; step++) {
            play.step();
            if (step % 4 == 0) play.check();
        }
        play.check();
        play.close();
        CHECK(play.slots_that_are_gone() == 0);
    }
}

TEST(windows_keep_what_they_see) {
    int gone = 0;
    for (uint32_t seed = 0; seed < 20; seed++) {
        Play play(seed, kWindowed, {2, 420, kRows});
        for (int step = 0; step < 300; step++) {
            play.step();
            if (step % 4 == 0) play.check();
        }
        play.check();
        play.close();
        gone += play.slots_that_are_gone();
    }
    CHECK(gone > 0);
}

TEST(blocks_are_shared_until_one_writes) {
    Cache cache(kShape, {3, kContext, kContext});
    const int one = cache.open();
    cache.prepare(one, std::vector<int>(100, -1), false);
    cache.commit(one, {0});
    cache.truncate(one, 1);
    CHECK(cache.free_blocks() == 12 - 1);
    const int other = cache.fork(one, 1);
    CHECK(cache.free_blocks() == 12 - 1);
    CHECK(cache.at(one).blocks == cache.at(other).blocks);
    cache.prepare(other, {-1}, false);
    CHECK(cache.free_blocks() == 12 - 2);
    CHECK(cache.at(one).blocks != cache.at(other).blocks);
    cache.close(one);
    CHECK(cache.free_blocks() == 12 - 1);
}

TEST(a_full_cache_serves_all_sessions) {
    Cache cache(kShape, {kSessions, kContext, kContext});
    std::vector<int> chain(kContext);
    for (int i = 0; i < kContext; i++) chain[i] = i - 1;
    std::vector<int> path(kContext);
    for (int i = 0; i < kContext; i++) path[i] = i;
    for (int i = 0; i < kSessions; i++) {
        const int session = cache.open();
        cache.prepare(session, chain, false);
        cache.commit(session, path);
        CHECK(tests::throws<std::logic_error>([&] { cache.prepare(session, {-1}, false); }));
    }
    CHECK(cache.free_blocks() == 0);
    CHECK(cache.open() == -1);
    CHECK(cache.fork(0, 10) == -1);
}

TEST(mistakes_are_caught) {
    using tests::throws;
    Cache cache(kShape, {2, kContext, kContext});
    const int one = cache.open();
    cache.prepare(one, {-1, 0, 0}, false);
    CHECK(throws<std::logic_error>([&] { cache.commit(one, {1}); }));
    CHECK(throws<std::logic_error>([&] { cache.commit(one, {0, 3}); }));
    CHECK(throws<std::logic_error>([&] { cache.commit(one, {-1}); }));
    CHECK(throws<std::logic_error>([&] { cache.hold(one, {0}); }));
    CHECK(throws<std::logic_error>([&] { cache.truncate(one, 1); }));
    CHECK(throws<std::logic_error>([&] { cache.fork(one, 1); }));
    CHECK(throws<std::out_of_range>([&] { cache.truncate(7, 0); }));
    cache.prepare(one, {-1}, true);
    CHECK(throws<std::logic_error>([&] { cache.commit(one, {0}); }));
    CHECK(cache.at(one).length == 0);
    Cache windowed(kWindowed, {1, kContext, kRows});
    windowed.prepare(windowed.open(), std::vector<int>(kRows, -1), true);
    windowed.hold(0, {0});
    CHECK(throws<std::logic_error>([&] { windowed.prepare(0, std::vector<int>(kRows, -1), true); }));
    windowed.prepare(0, std::vector<int>(kRows - 1, -1), true);
}

}  // namespace
}  // namespace slipstream
