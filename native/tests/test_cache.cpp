// The KV cache against a list of what each session holds.
#include "cache.hpp"

#include <algorithm>
#include <random>
#include <stdexcept>

#include "check.hpp"

namespace slipstream {
namespace {

constexpr CacheShape kShape{2, 2, 32};
constexpr int kSessions = 4, kContext = 200;
constexpr int kBlocks = kSessions * 4;

struct Expected {
    int session;
    std::vector<uint16_t> tokens, held;
};

// Sessions that "compute" rows by writing a number of their own everywhere in a slot.
class Play {
   public:
    explicit Play(uint32_t seed) : chance_(seed), cache_(kShape, kSessions, kContext) { open(); }

    void step() {
        switch (chance_() % 10) {
            case 0: return truncate();
            case 1: return fork();
            case 2: return replace();
            case 3:
            case 4:
            case 5: return rows(true);
            default: return rows(false);
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
        CHECK(cache_.free_blocks() == kBlocks);
    }

   private:
    void open() { expected_.push_back({cache_.open(), {}, {}}); }
    Expected& any() { return expected_[chance_() % expected_.size()]; }

    void truncate() {
        Expected& one = any();
        const int length = int(one.tokens.size() - chance_() % (one.tokens.size() / 2 + 1));
        cache_.truncate(one.session, length);
        one.tokens.resize(length);
        one.held.clear();
    }

    void fork() {
        Expected one = any();
        const int length = chance_() % 2 ? int(one.tokens.size()) : int(chance_() % (one.tokens.size() + 1));
        const int other = cache_.fork(one.session, length);
        CHECK((other < 0) == (expected_.size() == kSessions));
        if (other < 0) return;
        one.tokens.resize(length);
        expected_.push_back({other, one.tokens, {}});
    }

    void replace() {
        Expected& one = any();
        cache_.close(one.session);
        expected_.erase(expected_.begin() + (&one - expected_.data()));
        open();
    }

    // A forward: a tree, one path of which is kept, sometimes after a fork.
    void rows(bool partial) {
        const size_t index = chance_() % expected_.size();
        const int session = expected_[index].session;
        const int before = int(expected_[index].tokens.size() + (partial ? expected_[index].held.size() : 0));
        const int count = std::min<int>(1 + chance_() % 40, kContext - before);
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

    // Calls body(number) for all numbers of a slot.
    template <class Body>
    void each_number(int session, int slot, Body&& body) {
        const int block = cache_.at(session).blocks.at(slot / kKeyBlock), place = slot % kKeyBlock;
        for (int layer = 0; layer < kShape.layers; layer++)
            for (int head = 0; head < kShape.heads; head++)
                for (int d = 0; d < kShape.head_size; d++) {
                    body(cache_.keys(
                        block, layer,
                        head)[place / kChannels * kChannels * kShape.head_size + d * kChannels + place % kChannels]);
                    body(cache_.values(block, layer, head)[place * kShape.head_size + d]);
                }
    }
    void write(int session, int slot, uint16_t number) {
        each_number(session, slot, [&](uint16_t& there) { there = number++; });
    }
    bool holds(int session, int slot, uint16_t number) {
        bool same = true;
        each_number(session, slot, [&](uint16_t& there) { same &= there == number++; });
        return same;
    }

    std::mt19937 chance_;
    Cache cache_;
    std::vector<Expected> expected_;
    uint32_t next_ = 0;
};

TEST(sessions_hold_what_was_committed) {
    for (uint32_t seed = 0; seed < 40; seed++) {
        Play play(seed);
        for (int step = 0; step < 80; step++) {
            play.step();
            if (step % 4 == 0) play.check();
        }
        play.check();
        play.close();
    }
}

TEST(blocks_are_shared_until_one_writes) {
    Cache cache(kShape, 3, kContext);
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
    Cache cache(kShape, kSessions, kContext);
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
    Cache cache(kShape, 2, kContext);
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
}

}  // namespace
}  // namespace slipstream
