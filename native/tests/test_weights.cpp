// Files of tensors: read as they are, or refused.
#include "weights.hpp"

#include <algorithm>

#include "check.hpp"
#include "random_tensor.hpp"

namespace slipstream {
namespace {

using tests::kFormats;
using tests::TensorFile;
using tests::throws;

const Progress kSilent = [](double) { return true; };

TEST(tensors_of_all_formats_are_read) {
    std::mt19937 chance(1), again(1);
    constexpr int kRows = 300, kGroups = 3;
    const auto columns = [](Format format) { return kGroups * layout_of(format).inputs; };
    TensorFile file;
    for (Format format : kFormats) file.add(format, kRows, columns(format), chance);
    for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        const Weights weights({file.path()}, file.places(), pool, kSilent);
        again.seed(1);
        for (int tensor = 0; tensor < weights.count(); tensor++) {
            const Format format = kFormats[tensor];
            const auto source = tests::random_tensor(format, kRows, columns(format), again);
            const size_t row_bytes = source.size() / kRows;
            std::vector<uint8_t> block(weights.matrix(tensor).block_bytes());
            for (int row : {0, 17, 288, 299}) {  // the last block has 12 rows
                const int first = row / kChannels * kChannels;
                repack_block(format, source.data() + first * row_bytes, std::min(kChannels, kRows - first), kGroups,
                             block.data());
                CHECK(std::equal(block.begin(), block.end(), weights.matrix(tensor).block(row / kChannels)));
            }
        }
    }
}

TEST(tensors_of_several_files) {
    std::mt19937 chance(1);
    TensorFile one, other;
    one.add(Format::F32, 1, 64, chance);
    other.add(Format::F32, 1, 32, chance);
    other.add(Format::F32, 1, 64, chance);
    std::vector<TensorPlace> places = {other.places()[1], one.places()[0]};
    places[0].file = 1;
    ThreadPool pool(2);
    const Weights both({one.path(), other.path()}, places, pool, kSilent);
    const Weights alone({other.path()}, {other.places()[1]}, pool, kSilent);
    CHECK(both.vector(0) == alone.vector(0));
    CHECK(both.vector(0) != both.vector(1));
    places[1].offset = 128;  // beyond the end of the first file, not of the second
    CHECK(throws<BadFile>([&] { Weights({one.path(), other.path()}, places, pool, kSilent); }));
}

TEST(progress_is_told_and_may_end_it) {
    std::mt19937 chance(1);
    TensorFile file;
    for (int i = 0; i < 5; i++) file.add(Format::F32, 100, 32, chance);
    const auto& places = file.places();
    ThreadPool pool(1);
    std::vector<double> told;
    Weights({file.path()}, places, pool, [&](double done) {
        told.push_back(done);
        return true;
    });
    CHECK(told.size() == 5 && told.back() == 1 && std::is_sorted(told.begin(), told.end()));
    CHECK(throws<Abandoned>([&] { Weights({file.path()}, places, pool, [](double) { return false; }); }));
}

TEST(bad_places_are_refused) {
    std::mt19937 chance(1);
    TensorFile file;
    file.add(Format::Q4_0, 64, 64, chance);
    const TensorPlace good = file.places()[0];
    ThreadPool pool(2);
    const auto refused = [&](auto change) {
        TensorPlace place = good;
        change(place);
        return throws<BadFile>([&] { Weights({file.path()}, {place}, pool, kSilent); });
    };
    CHECK(!refused([](TensorPlace&) {}));
    for (int64_t offset : {int64_t(-1), int64_t(1), int64_t(1) << 40, INT64_MAX, INT64_MIN})
        CHECK(refused([&](TensorPlace& place) { place.offset = offset; }));
    for (int64_t size : {int64_t(-32), int64_t(0), int64_t(1) << 31, int64_t(1) << 62, INT64_MAX, INT64_MIN}) {
        CHECK(refused([&](TensorPlace& place) { place.rows = size; }));
        CHECK(refused([&](TensorPlace& place) { place.columns = size; }));
    }
    CHECK(refused([](TensorPlace& place) { place.rows = 65; }));
    CHECK(refused([](TensorPlace& place) { place.columns = 63; }));
    CHECK(refused([](TensorPlace& place) { place.rows = place.columns = (int64_t(1) << 30) - 32; }));
    for (int format : {-1, 4, int(Format::Q4_K), 77, 1 << 30})
        CHECK(refused([&](TensorPlace& place) { place.format = format; }));
    CHECK(refused([](TensorPlace& place) { place.format = int(Format::F32); }));
    CHECK(throws<BadFile>([&] { Weights({"/nowhere/at/all"}, {good}, pool, kSilent); }));
    CHECK(throws<BadFile>([&] { Weights({"/tmp"}, {good}, pool, kSilent); }));
}

}  // namespace
}  // namespace slipstream
