// Forwards of a small random model: the same bits with any number of threads, in any company.
#include "model.hpp"

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "check.hpp"
#include "random_tensor.hpp"

namespace slipstream {
namespace {

constexpr int kWidth = 64, kHeads = 4, kKeyHeads = 2, kHeadSize = 32, kFeedForward = 96, kVocabulary = 75;

// A llama, or what the other architectures make of one.
enum class Kind { kPlain, kHalves, kEverything };

// Every matrix has another format. Every second layer of "everything" has a window.
struct Files {
    explicit Files(int layers, Kind kind) {
        std::mt19937 chance(5);
        int next = 0;
        const auto matrix = [&](int rows, int columns) {
            return file.add(tests::kFormats[next++ % tests::kShortFormats], rows, columns, chance);
        };
        const auto norm = [&] { return file.add(Format::F32, 1, kWidth, chance); };
        const int embedding = matrix(kVocabulary, kWidth), output_norm = norm();
        std::vector<int> tensors;
        for (int part = 0; part < 9; part++) {
            const int inner = kHeads * kHeadSize, keys = kKeyHeads * kHeadSize;
            const int rows[] = {1, inner, keys, keys, kWidth, 1, kFeedForward, kFeedForward, kWidth};
            const int columns[] = {kWidth, kWidth, kWidth, kWidth, inner, kWidth, kWidth, kWidth, kFeedForward};
            tensors.push_back(rows[part] == 1 ? norm() : matrix(rows[part], columns[part]));
        }
        ThreadPool pool(2);
        weights = std::make_shared<Weights>(std::vector{file.path()}, file.places(), pool, [](double) { return true; });
        const auto at = [&](int part) { return weights->matrix(tensors[part]); };
        const auto vector = [&](int index) {
            std::vector<float> numbers = weights->vector(index);
            for (float& number : numbers) number = 1 + number;
            return numbers;
        };
        program.width = kWidth;
        program.heads = kHeads;
        program.key_value_heads = kKeyHeads;
        program.head_size = kHeadSize;
        program.embedding = program.output = weights->matrix(embedding);
        program.output_norm = {vector(output_norm), 1e-5f};
        for (float base : {1e4f, 1e2f}) {
            Rotary rotary{{}, kind != Kind::kPlain};
            for (int pair = 0; pair < kHeadSize / 2; pair++)
                rotary.frequencies.push_back(std::pow(base, -2.0f * pair / kHeadSize));
            program.rotaries.push_back(rotary);
        }
        const Normalise first{vector(tensors[0]), 1e-5f}, second{vector(tensors[5]), 1e-5f};
        const Normalise head{std::vector<float>(kHeadSize, 0.9f), 1e-6f};
        const auto bias = [](int rows) { return std::vector<float>(rows, 0.1f); };
        for (int layer = 0; layer < layers; layer++) {
            if (kind != Kind::kEverything) {
                const Attend attend{{at(1), {}, {}}, {at(2), {}, {}}, {at(3), {}, {}}, 0.18f, 0, 0};
                program.layers.push_back({first, attend, AddProjected{at(4)}, second,
                                          GatedUnit{at(6), at(7), Activation::kSilu}, AddProjected{at(8)}});
                continue;
            }
            const int keys = kKeyHeads * kHeadSize, is_local = layer % 2 == 0;
            const Attend attend{{at(1), bias(kHeads * kHeadSize), head},
                                {at(2), bias(keys), head},
                                {at(3), bias(keys), {}},
                                0.18f,
                                is_local,
                                is_local ? 70 : 0};
            program.layers.push_back({first, attend, AddNormalised{at(4), first}, second,
                                      GatedUnit{at(6), at(7), Activation::kGelu}, AddNormalised{at(8), second}});
        }
        if (kind == Kind::kEverything) program.embedding_scale = 8;
    }

    std::unique_ptr<Model> model(const std::string& set, int threads, Limits limits = {3, 700, 600}) const {
        return std::make_unique<Model>(weights, program, kernels_for(set), std::make_shared<ThreadPool>(threads),
                                       limits);
    }

    tests::TensorFile file;
    std::shared_ptr<Weights> weights;
    Program program;
};

std::vector<int> tokens_of(int count, int seed) {
    std::mt19937 chance(seed);
    std::vector<int> tokens(count);
    for (int& token : tokens) token = int(chance() % kVocabulary);
    return tokens;
}

std::vector<int> path_of(int count) {
    std::vector<int> path(count);
    std::iota(path.begin(), path.end(), 0);
    return path;
}

const std::function<bool()> kNever = [] { return false; };

// Logits of all outputs of a forward, [outputs, vocabulary].
std::vector<float> compute(Model& model, const std::vector<Segment>& segments, const std::vector<int>& layers = {}) {
    model.forward(segments, layers, {}, kNever);
    std::vector<float> logits;
    for (int row = 0; row < model.outputs(); row++) {
        const float* start = model.logits() + size_t(row) * model.logits_stride();
        logits.insert(logits.end(), start, start + kVocabulary);
    }
    return logits;
}

void append(std::vector<float>& all, const std::vector<float>& more) {
    all.insert(all.end(), more.begin(), more.end());
}

// A life with prefill, a tree, company, a fork, drafts and a rollback; everything it computed.
std::vector<float> life(Model& model) {
    std::vector<float> all;
    Cache& cache = model.cache();
    const int one = cache.open(), other = cache.open();
    append(all, compute(model, {{one, tokens_of(300, 1), {}, 3}}));  // over chunks and panels
    cache.commit(one, path_of(300));
    append(all, compute(model, {{one, tokens_of(6, 2), {-1, 0, 0, 1, -1, 4}, 6}, {other, tokens_of(70, 3), {}, 1}}));
    cache.commit(one, {0, 1, 3});
    cache.commit(other, path_of(70));
    const int fork = cache.fork(one, 301);
    append(all, compute(model, {{fork, tokens_of(1, 4), {}, 1}}));
    cache.commit(fork, {0});
    append(all, compute(model, {{one, tokens_of(2, 5), {}, 2}}, {1}));
    cache.hold(one, {0, 1});
    append(all, compute(model, {{one, tokens_of(2, 6), {-1, -1}, 2}}, {1}));
    cache.truncate(one, 260);
    append(all, compute(model, {{one, tokens_of(40, 7), {}, 40}, {fork, tokens_of(1, 8), {}, 1}}));
    for (int session : {one, other, fork}) cache.close(session);
    return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(threads_change_no_bit) {
    for (Kind kind : {Kind::kPlain, Kind::kHalves, Kind::kEverything}) {
        const Files files(2, kind);
        for (const std::string& set : instruction_sets()) {
            const auto expected = life(*files.model(set, 1));
            for (float logit : expected) CHECK(std::isfinite(logit));
            for (int threads = 2; threads <= 4; threads++) CHECK(same_bits(life(*files.model(set, threads)), expected));
            if (kind != Kind::kPlain) break;
        }
    }
}

TEST(lives_repeat_themselves) {
    const Files files(2, Kind::kPlain);
    const auto model = files.model(instruction_sets().front(), 2);
    const auto expected = life(*model);
    for (int i = 0; i < 3; i++) CHECK(same_bits(life(*model), expected));
}

TEST(rows_alone_and_together) {
    for (Kind kind : {Kind::kPlain, Kind::kEverything}) {
        const Files files(2, kind);
        const auto model = files.model(instruction_sets().front(), 1);
        const auto tokens = tokens_of(340, 1);  // windows begin in the second chunk, too
        std::vector<float> alone;
        const int one = model->cache().open(), other = model->cache().open();
        for (int token : tokens) {
            append(alone, compute(*model, {{one, {token}, {}, 1}}));
            model->cache().commit(one, {0});
        }
        CHECK(same_bits(compute(*model, {{other, tokens, {}, 340}}), alone));
    }
}

// With one layer that sees 70 positions, the tokens before them leave no trace, and the first of them does.
TEST(windows_end_where_they_should) {
    const Files files(1, Kind::kEverything);
    const auto model = files.model(instruction_sets().front(), 1);
    const auto last = [&](int changed) {
        auto tokens = tokens_of(300, 1);
        tokens[changed] = (tokens[changed] + 1) % kVocabulary;
        const int session = model->cache().open();
        const auto logits = compute(*model, {{session, tokens, {}, 1}});
        model->cache().close(session);
        return logits;
    };
    CHECK(same_bits(last(0), last(229)));  // 230 to 299 are seen, which lie in two chunks
    CHECK(!same_bits(last(0), last(230)));
}

TEST(an_interrupted_forward_leaves_sessions_as_they_were) {
    const Files files(40, Kind::kPlain);
    for (int threads : {1, 2}) {
        const auto model = files.model("portable", threads, {1, 640, 600});
        const int session = model->cache().open();
        const auto expected = compute(*model, {{session, tokens_of(5, 1), {}, 1}});
        model->cache().commit(session, path_of(5));
        const auto next = compute(*model, {{session, tokens_of(1, 2), {}, 1}});
        int asked = 0;
        const auto stop = [&] { return ++asked > 0; };
        // 600 rows take many times the 50 ms after which it is asked
        CHECK(tests::throws<Interrupted>([&] { model->forward({{session, tokens_of(600, 3), {}, 1}}, {}, {}, stop); }));
        CHECK(asked >= 1);  // under a sanitizer one layer may take longer than that
        CHECK(model->outputs() == 0 && model->cache().at(session).length == 5);
        CHECK(tests::throws<std::logic_error>([&] { model->cache().commit(session, {0}); }));
        CHECK(same_bits(compute(*model, {{session, tokens_of(1, 2), {}, 1}}), next));
        model->cache().truncate(session, 0);
        CHECK(same_bits(compute(*model, {{session, tokens_of(5, 1), {}, 1}}), expected));
    }
}

TEST(two_models_compute_at_once) {
    const Files files(2, Kind::kPlain);
    const auto set = instruction_sets().front();
    const auto expected = life(*files.model(set, 1));
    const auto pool = std::make_shared<ThreadPool>(2);
    const auto live = [&] {
        Model model(files.weights, files.program, kernels_for(set), pool, {3, 700, 600});
        for (int i = 0; i < 2; i++) CHECK(same_bits(life(model), expected));
    };
    std::thread other(live);
    live();
    other.join();
}

TEST(requests_that_cannot_be) {
    const Files files(2, Kind::kPlain);
    const auto model = files.model("portable", 1, {2, 100, 8});
    const int one = model->cache().open();
    const auto refused = [&](std::vector<Segment> segments, std::vector<int> layers = {}) {
        return tests::throws<std::logic_error>([&] { compute(*model, segments, layers); });
    };
    CHECK(!refused({{one, {1, 2}, {-1, -1}, 2}}));
    CHECK(refused({{one, {}, {}, 0}}));
    CHECK(refused({{one, {kVocabulary}, {}, 1}}));
    CHECK(refused({{one, {-1}, {}, 1}}));
    CHECK(refused({{one, {1}, {}, 2}}));
    CHECK(refused({{one, {1, 2}, {-1, 1}, 1}}));
    CHECK(refused({{one, {1, 2}, {-1}, 1}}));
    CHECK(refused({{one, tokens_of(9, 1), {}, 1}}));
    CHECK(refused({{one, {1}, {}, 1}, {one, {1}, {}, 1}}));
    CHECK(refused({{1 - one, {1}, {}, 1}}));  // not open
    CHECK(refused({{one, {1}, {}, 1}}, {2}));
    CHECK(refused({}));
    CHECK(model->cache().at(one).length == 0);
}

Attend& attention_of(Program& program) { return std::get<Attend>(program.layers[0][1]); }

TEST(programs_that_do_not_fit_together) {
    const Files files(2, Kind::kPlain);
    const auto refused = [&](const std::function<void(Program&)>& change) {
        Program program = files.program;
        change(program);
        return tests::throws<std::invalid_argument>([&] { program.check(); });
    };
    CHECK(!refused([](Program&) {}));
    CHECK(refused([](Program& program) { program.width = 96; }));
    CHECK(refused([](Program& program) { program.heads = 3; }));
    CHECK(refused([](Program& program) { program.key_value_heads = 0; }));
    CHECK(refused([](Program& program) { program.head_size = 64; }));
    CHECK(refused([](Program& program) { program.rotaries[0].frequencies.resize(32); }));
    CHECK(refused([](Program& program) { attention_of(program).rotary = 2; }));
    CHECK(refused([](Program& program) { attention_of(program).window = -1; }));
    CHECK(refused([](Program& program) { attention_of(program).key.bias.resize(kWidth + 1); }));
    CHECK(refused([](Program& program) { attention_of(program).query.norm.weight.resize(kWidth); }));
    CHECK(refused([](Program& program) {
        program.layers[0][2] = AddNormalised{std::get<AddProjected>(program.layers[0][2]).matrix, {{1, 1}, 1e-5f}};
    }));
    CHECK(refused([](Program& program) { program.layers.clear(); }));
    CHECK(refused([](Program& program) { program.output.rows++; }));
    CHECK(refused([](Program& program) { program.embedding.columns = 32; }));
    CHECK(refused([](Program& program) { program.layers[1].erase(program.layers[1].begin()); }));
    CHECK(refused([](Program& program) {  // attends twice
        for (int operation : {0, 1}) program.layers[0].push_back(Operation(program.layers[0][operation]));
    }));
    CHECK(refused([](Program& program) { std::get<GatedUnit>(program.layers[0][4]).gate.rows = 64; }));
}

}  // namespace
}  // namespace slipstream
