// A program that begins with fused hidden states: the same bits with any number of threads, in any company.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "check.hpp"
#include "model.hpp"
#include "random_tensor.hpp"

namespace slipstream {
namespace {

constexpr int kWidth = 64, kStates = 192, kHeads = 4, kKeyHeads = 2, kHeadSize = 32, kFeedForward = 96, kLogits = 75;

struct Head {
    explicit Head(bool norms) {
        std::mt19937 chance(5);
        int next = 0;
        const auto matrix = [&](int rows, int columns) {
            return file.add(tests::kFormats[next++ % tests::kShortFormats], rows, columns, chance);
        };
        const int inner = kHeads * kHeadSize, keys = kKeyHeads * kHeadSize;
        const int fuse = matrix(kWidth, kStates), query = matrix(inner, 2 * kWidth), key = matrix(keys, 2 * kWidth),
                  value = matrix(keys, 2 * kWidth), out = matrix(kWidth, inner), gate = matrix(kFeedForward, kWidth),
                  up = matrix(kFeedForward, kWidth), down = matrix(kWidth, kFeedForward),
                  output = matrix(kLogits, kWidth);
        ThreadPool pool(2);
        weights = std::make_shared<Weights>(std::vector{file.path()}, file.places(), pool, [](double) { return true; });
        const auto at = [&](int index) { return weights->matrix(index); };
        const auto norm = [](int size, float weight) { return Normalise{std::vector<float>(size, weight), 1e-5f}; };
        program.width = kWidth;
        program.heads = kHeads;
        program.key_value_heads = kKeyHeads;
        program.head_size = kHeadSize;
        program.fuse = {at(fuse), norms ? norm(kStates, 1.1f) : Normalise(), norms ? norm(kWidth, 0.9f) : Normalise()};
        program.output = at(output);
        program.output_norm = norm(kWidth, 1.2f);
        Rotary rotary;
        for (int pair = 0; pair < kHeadSize / 2; pair++)
            rotary.frequencies.push_back(std::pow(1e4f, -2.0f * pair / kHeadSize));
        program.rotaries.push_back(rotary);
        const Join join{norm(kWidth, 0.8f), norms ? Normalise() : norm(kWidth, 1.3f)};
        const Attend attend{{at(query), {}, {}}, {at(key), {}, {}}, {at(value), {}, {}}, 0.18f, 0, 0};
        program.layers.push_back({join, attend, AddProjected{at(out)}, norm(kWidth, 1.0f),
                                  GatedUnit{at(gate), at(up), Activation::kSilu}, AddProjected{at(down)}});
    }

    std::unique_ptr<Model> model(const std::string& set, int threads) const {
        return std::make_unique<Model>(weights, program, kernels_for(set), std::make_shared<ThreadPool>(threads),
                                       Limits{3, 700, 300});
    }

    tests::TensorFile file;
    std::shared_ptr<Weights> weights;
    Program program;
};

std::vector<float> numbers_of(int count, int seed) {
    std::mt19937 chance(seed);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(count);
    for (float& number : numbers) number = normal(chance);
    return numbers;
}

// What a text of `count` rows begins with; every third row goes on from a state of its own kind.
struct Text {
    explicit Text(int count, int seed = 1)
        : count(count),
          embeddings(numbers_of(count * kWidth, seed)),
          states(numbers_of(count * kWidth, seed + 1)),
          hidden(numbers_of(count * kStates, seed + 2)) {}

    static bool own(int row) { return row % 3 == 2; }

    int count;
    std::vector<float> embeddings, states, hidden;
};

const std::function<bool()> kNever = [] { return false; };

// Logits and own states of rows [first, last), which are committed.
std::vector<float> read(Model& model, int session, const Text& text, int first, int last) {
    std::vector<float> hidden;
    Beginnings beginnings{text.embeddings.data() + first * kWidth, text.states.data() + first * kWidth, nullptr, {}};
    for (int row = first; row < last; row++) {
        if (Text::own(row)) continue;
        beginnings.fused.push_back(row - first);
        hidden.insert(hidden.end(), text.hidden.begin() + row * kStates, text.hidden.begin() + (row + 1) * kStates);
    }
    beginnings.hidden = hidden.data();
    const int count = last - first;
    std::vector<int> path(count);
    for (int row = 0; row < count; row++) path[row] = row;
    model.forward({{session, std::vector<int>(count, 100000), {}, count}}, {}, {0}, kNever, &beginnings);
    std::vector<float> found;
    for (int row = 0; row < count; row++) {
        const float* logits = model.logits() + size_t(row) * model.logits_stride();
        found.insert(found.end(), logits, logits + kLogits);
        const auto state = model.hidden_state(0);
        found.insert(found.end(), state->begin() + row * kWidth, state->begin() + (row + 1) * kWidth);
    }
    model.cache().commit(session, path);
    return found;
}

std::vector<float> read_by(Model& model, const Text& text, int step) {
    std::vector<float> all;
    const int session = model.cache().open();
    for (int first = 0; first < text.count; first += step) {
        const auto more = read(model, session, text, first, std::min(first + step, text.count));
        all.insert(all.end(), more.begin(), more.end());
    }
    model.cache().close(session);
    return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(hidden_states_give_the_same_bits_alone_and_together) {
    const Text text(290);
    for (bool norms : {false, true}) {
        const Head head(norms);
        for (const std::string& set : instruction_sets()) {
            const auto expected = read_by(*head.model(set, 1), text, 1);
            for (float number : expected) CHECK(std::isfinite(number));
            for (int threads : {1, 3})
                for (int step : {5, 290}) CHECK(same_bits(read_by(*head.model(set, threads), text, step), expected));
        }
    }
}

TEST(every_input_of_a_head_counts) {
    const Head head(false);
    const auto model = head.model(instruction_sets().front(), 2);
    const Text text(7);
    const auto expected = read_by(*model, text, 7);
    Text changed = text;
    changed.embeddings[6 * kWidth + 3] += 0.5f;
    CHECK(!same_bits(read_by(*model, changed, 7), expected));
    changed = text;
    changed.states[2 * kWidth] += 0.5f;
    CHECK(!same_bits(read_by(*model, changed, 7), expected));
    changed.states = text.states;
    changed.states[0] += 0.5f;  // of a row that begins with hidden states
    CHECK(same_bits(read_by(*model, changed, 7), expected));
    changed = text;
    changed.hidden[kStates - 1] += 0.5f;
    CHECK(!same_bits(read_by(*model, changed, 7), expected));
}

TEST(bad_beginnings_are_refused) {
    const Head head(false);
    const auto model = head.model("portable", 1);
    const Text text(4);
    const int session = model->cache().open();
    const auto forward = [&](const std::vector<int>& fused) {
        const Beginnings beginnings{text.embeddings.data(), text.states.data(), text.hidden.data(), fused};
        model->forward({{session, {1, 2}, {}, 1}}, {}, {}, kNever, &beginnings);
    };
    forward({0, 1});
    for (const auto& fused : std::vector<std::vector<int>>{{0, 0}, {2}, {-1}})
        CHECK(tests::throws<std::logic_error>([&] { forward(fused); }));
    CHECK(tests::throws<std::logic_error>([&] { model->forward({{session, {1, 2}, {}, 1}}, {}, {}, kNever); }));
}

TEST(programs_of_heads_that_do_not_fit_are_refused) {
    const auto refused = [](const std::function<void(Program&)>& change) {
        Head head(true);
        change(head.program);
        return tests::throws<std::invalid_argument>([&] { head.model("portable", 1); });
    };
    CHECK(!refused([](Program&) {}));
    CHECK(refused([](Program& program) { program.fuse.matrix.rows = 32; }));
    CHECK(refused([](Program& program) { program.fuse.before.weight.pop_back(); }));
    CHECK(refused([](Program& program) { program.fuse.after.weight.pop_back(); }));
    CHECK(refused([](Program& program) { program.fuse = {}; }));
    CHECK(refused([](Program& program) { std::get<Join>(program.layers[0][0]).embedding.weight.pop_back(); }));
    CHECK(refused([](Program& program) { program.layers[0][0] = program.output_norm; }));
    CHECK(refused([](Program& program) { program.output.columns = 32; }));
    CHECK(refused([](Program& program) { program.embedding.rows = 3; }));
}

}  // namespace
}  // namespace slipstream
