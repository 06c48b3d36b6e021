// The Python module: thin, and without opinions; slipstream/runtime/native wraps it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "buffers.hpp"
#include "model.hpp"
#include "roofline.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace slipstream {
namespace {

// Gives back a Python exception that a callback raised, after the C++ call has been left in good order.
class Signals {
   public:
    // True if a signal handler raised: Ctrl-C. Python's rule is that only its main thread runs handlers.
    bool raised() {
        const nb::gil_scoped_acquire gil;
        if (pending_ || PyErr_CheckSignals() == 0) return pending_;
        pending_ = true;
        error_ = std::make_unique<nb::python_error>();
        return true;
    }
    [[noreturn]] void rethrow() { throw nb::python_error(*error_); }

   private:
    bool pending_ = false;
    std::unique_ptr<nb::python_error> error_;
};

// Name, type, rows, columns, file, offset.
using PythonPlace = std::tuple<std::string, int, int64_t, int64_t, int, int64_t>;

std::vector<TensorPlace> places_of(const std::vector<PythonPlace>& tensors) {
    std::vector<TensorPlace> places;
    for (const auto& [name, format, rows, columns, file, offset] : tensors)
        places.push_back({name, format, rows, columns, file, offset});
    return places;
}

std::shared_ptr<Weights> load_weights(const std::vector<std::string>& paths, const std::vector<PythonPlace>& tensors,
                                      int threads, const nb::object& progress) {
    std::unique_ptr<nb::python_error> error;
    const auto report = [&](double done) {
        const nb::gil_scoped_acquire gil;
        try {
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            if (!progress.is_none()) progress(done);
            return true;
        } catch (nb::python_error& raised) {
            error = std::make_unique<nb::python_error>(std::move(raised));
            return false;
        }
    };
    try {
        const nb::gil_scoped_release unlocked;
        const auto pool = ThreadPool::shared(threads);
        return std::make_shared<Weights>(paths, places_of(tensors), *pool, report);
    } catch (const Abandoned&) {
        throw nb::python_error(std::move(*error));
    }
}

int64_t weight_bytes(const std::vector<PythonPlace>& tensors) {
    return int64_t(Weights::bytes_for(places_of(tensors)));
}

// Bytes of the KV cache and of the buffers of a model with these sizes.
// fused: numbers of the hidden states that its rows begin with, 0 for a model that begins with embeddings
std::tuple<int64_t, int64_t> memory_needed(const std::vector<int>& windows, int width, int heads, int key_value_heads,
                                           int head_size, int feed_forward, int vocabulary, int angles, int fused,
                                           int sessions, int context, int rows, int threads) {
    Program program;
    program.width = width;
    program.heads = heads;
    program.key_value_heads = key_value_heads;
    program.head_size = head_size;
    program.rotaries.resize(1);
    program.rotaries[0].frequencies.resize(angles / 2);
    GatedUnit unit;
    unit.gate.rows = feed_forward;
    program.layers = {{unit}};
    if (fused > 0) {
        program.fuse.matrix.rows = width;
        program.fuse.matrix.columns = fused;
        program.layers[0].emplace_back(Join{});
    }
    program.output.rows = vocabulary;
    const Limits limits{sessions, context, rows};
    return {int64_t(Cache::bytes_for({key_value_heads, head_size, windows}, limits)),
            int64_t(Model::buffer_bytes_for(program, limits, threads))};
}

// A weight and its epsilon.
using PythonNorm = std::tuple<int, float>;
// A matrix, its bias, and the norm of its heads.
using PythonHeads = std::tuple<int, std::optional<int>, std::optional<PythonNorm>>;

// Builds a Program call by call. Tensors are indices into `weights`.
class ProgramBuilder {
   public:
    ProgramBuilder(std::shared_ptr<Weights> weights, int width, int heads, int key_value_heads, int head_size)
        : weights_(std::move(weights)) {
        program_.width = width;
        program_.heads = heads;
        program_.key_value_heads = key_value_heads;
        program_.head_size = head_size;
    }

    void embedding(int tensor, float scale) {
        program_.embedding = weights_->matrix(tensor);
        program_.embedding_scale = scale;
    }
    void fuse(int tensor, const std::optional<PythonNorm>& before, const std::optional<PythonNorm>& after) {
        program_.fuse = {weights_->matrix(tensor), before ? norm_of(*before) : Normalise(),
                         after ? norm_of(*after) : Normalise()};
    }
    // Returns its index, by which attention names it.
    int rotary(std::vector<float> frequencies, bool halves) {
        program_.rotaries.push_back({std::move(frequencies), halves});
        return int(program_.rotaries.size()) - 1;
    }
    void layer() { program_.layers.emplace_back(); }
    void normalise(const PythonNorm& norm) { add(norm_of(norm)); }
    void join(const PythonNorm& embedding, const std::optional<PythonNorm>& stream) {
        add(Join{norm_of(embedding), stream ? norm_of(*stream) : Normalise()});
    }
    void read_embedding(const PythonNorm& norm) { add(ReadEmbedding{norm_of(norm)}); }
    void attend(const PythonHeads& query, const PythonHeads& key, const PythonHeads& value, float scale, int rotary,
                int window) {
        add(Attend{heads_of(query), heads_of(key), heads_of(value), scale, rotary, window});
    }
    void gated_unit(int gate, int up, Activation activation) {
        add(GatedUnit{weights_->matrix(gate), weights_->matrix(up), activation});
    }
    void add_projected(int tensor) { add(AddProjected{weights_->matrix(tensor)}); }
    void add_normalised(int tensor, const PythonNorm& norm) {
        add(AddNormalised{weights_->matrix(tensor), norm_of(norm)});
    }
    void output(const PythonNorm& norm, int tensor) {
        program_.output_norm = norm_of(norm);
        program_.output = weights_->matrix(tensor);
    }

    const Program& program() const { return program_; }
    const std::shared_ptr<Weights>& weights() const { return weights_; }

   private:
    Normalise norm_of(const PythonNorm& norm) const {
        const auto [tensor, epsilon] = norm;
        return {weights_->vector(tensor), epsilon};
    }
    Heads heads_of(const PythonHeads& heads) const {
        const auto& [matrix, bias, norm] = heads;
        return {weights_->matrix(matrix), bias ? weights_->vector(*bias) : std::vector<float>(),
                norm ? norm_of(*norm) : Normalise()};
    }
    void add(Operation operation) {
        if (program_.layers.empty()) throw std::invalid_argument("an operation comes before the first layer");
        program_.layers.back().push_back(std::move(operation));
    }

    std::shared_ptr<Weights> weights_;
    Program program_;
};

using Table = nb::ndarray<nb::numpy, const float, nb::ndim<2>>;
using GivenRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// embeddings, states, hidden states, and the rows that begin with those
using PythonBeginnings = std::tuple<GivenRows, GivenRows, GivenRows, std::vector<int>>;
// session, tokens, parents (empty for a chain), outputs
using PythonSegment = std::tuple<int, std::vector<int>, std::vector<int>, int>;

class PythonModel {
   public:
    PythonModel(const ProgramBuilder& builder, const std::string& instruction_set, int threads, int sessions,
                int context, int rows)
        : model_(builder.weights(), builder.program(), kernels_for(instruction_set), ThreadPool::shared(threads),
                 Limits{sessions, context, rows}) {}

    void forward(std::vector<PythonSegment> python_segments, const std::vector<int>& layers,
                 const std::vector<int>& hidden, const std::optional<PythonBeginnings>& given) {
        std::vector<Segment> segments;
        segments.reserve(python_segments.size());
        size_t rows = 0;
        for (auto& [session, tokens, parents, outputs] : python_segments) {
            rows += tokens.size();
            segments.push_back({session, std::move(tokens), std::move(parents), outputs});
        }
        Beginnings beginnings;
        if (given) beginnings = beginnings_of(*given, rows);
        Signals signals;
        try {
            const nb::gil_scoped_release unlocked;
            model_.forward(segments, layers, hidden, [&] { return signals.raised(); }, given ? &beginnings : nullptr);
        } catch (const Interrupted&) {
            signals.rethrow();
        }
    }

    Table logits() {
        const size_t shape[] = {size_t(model_.outputs()), size_t(model_.program().vocabulary())};
        const int64_t strides[] = {model_.logits_stride(), 1};
        return Table(model_.logits(), 2, shape, nb::find(this), strides);
    }

    Table hidden_state(int layer) {
        auto* state = new HiddenState(model_.hidden_state(layer));
        const nb::capsule owner(state, [](void* p) noexcept { delete static_cast<HiddenState*>(p); });
        const size_t width = model_.program().width;
        const size_t shape[] = {(*state)->size() / width, width};
        return Table((*state)->data(), 2, shape, owner);
    }

    // [tokens, width]: rows of the embedding table as they are in the file.
    nb::ndarray<nb::numpy, float> embeddings(const std::vector<int>& tokens) {
        const Matrix& table = model_.program().embedding;
        for (int token : tokens)
            if (token < 0 || token >= table.rows) throw std::out_of_range("no such token");
        const size_t width = model_.program().width, shape[] = {tokens.size(), width};
        auto* numbers = new float[tokens.size() * width];
        const nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<float*>(p); });
        for (size_t i = 0; i < tokens.size(); i++) read_row(table, tokens[i], numbers + i * width);
        return nb::ndarray<nb::numpy, float>(numbers, 2, shape, owner);
    }

    // Keys and values of the session's first `length` slots in one layer, [slots, heads, size] each, without those that
    // a window has left behind: for tests.
    std::tuple<nb::ndarray<nb::numpy, uint16_t>, nb::ndarray<nb::numpy, uint16_t>> cached(int session, int layer,
                                                                                          int length) {
        const Cache& cache = model_.cache();
        const CacheShape& shape = cache.shape();
        if (layer < 0 || layer >= shape.layers()) throw std::out_of_range("no such layer");
        const auto& blocks = cache.blocks(session, layer);
        if (length < 0 || length > int(blocks.size()) * kKeyBlock) throw std::out_of_range("no such slots");
        const int gone = int(std::count(blocks.begin(), blocks.end(), kGone)) * kKeyBlock;
        const size_t dimensions[] = {size_t(std::max(length - gone, 0)), size_t(shape.heads), size_t(shape.head_size)};
        const size_t count = dimensions[0] * dimensions[1] * dimensions[2];
        auto *keys = new uint16_t[count], *values = new uint16_t[count];
        uint16_t *key = keys, *value = values;
        for (int slot = gone; slot < length; slot++) {
            const int block = blocks[slot / kKeyBlock], place = slot % kKeyBlock;
            for (int head = 0; head < shape.heads; head++)
                for (int d = 0; d < shape.head_size; d++) {
                    *key++ = cache.keys(
                        block, layer,
                        head)[place / kChannels * kChannels * shape.head_size + d * kChannels + place % kChannels];
                    *value++ = cache.values(block, layer, head)[place * shape.head_size + d];
                }
        }
        const auto owned = [&](uint16_t* data) {
            const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint16_t*>(p); });
            return nb::ndarray<nb::numpy, uint16_t>(data, 3, dimensions, owner);
        };
        return {owned(keys), owned(values)};
    }

    std::map<std::string, double> profile() const {
        std::map<std::string, double> seconds;
        for (int stage = 0; stage < kStages; stage++) seconds[kStageNames[stage]] = model_.profile()[stage];
        return seconds;
    }

    Model& model() { return model_; }

   private:
    // Throws std::invalid_argument where sizes do not fit.
    Beginnings beginnings_of(const PythonBeginnings& given, size_t rows) const {
        const auto& [embeddings, states, hidden, fused] = given;
        const size_t width = model_.program().width, columns = model_.program().fuse.matrix.columns;
        const auto has = [](const GivenRows& table, size_t count, size_t numbers) {
            return table.shape(0) == count && table.shape(1) == numbers;
        };
        if (!has(embeddings, rows, width) || !has(states, rows, width) || !has(hidden, fused.size(), columns))
            throw std::invalid_argument("what rows begin with has the wrong size");
        return {embeddings.data(), states.data(), hidden.data(), fused};
    }

    Model model_;
};

// A matrix times rows, and rows of the matrix as numbers: for tests against an independent dequantiser.
std::vector<float> multiply(const Weights& weights, int tensor, const std::string& instruction_set,
                            const std::vector<float>& values, int rows) {
    const Matrix& matrix = weights.matrix(tensor);
    if (rows < 1 || int64_t(values.size()) != int64_t(rows) * matrix.columns)
        throw std::invalid_argument("values must be rows x columns");
    const Kernels& kernels = kernels_for(instruction_set);
    const ActivationBuffer buffer(rows, matrix.columns);
    const Activations& x = buffer.view();
    std::copy(values.begin(), values.end(), x.values);
    for (int row = 0; row < rows; row++) kernels.quantise(x.from(row).values, matrix.columns, x.from(row));
    const int stride = matrix.blocks() * kChannels;
    std::vector<float> out(size_t(rows) * stride), result;
    for (int block = 0; block < matrix.blocks(); block++)
        kernels.product(matrix, block, x, rows, out.data() + block * kChannels, stride);
    for (int row = 0; row < rows; row++)
        result.insert(result.end(), out.begin() + size_t(row) * stride,
                      out.begin() + size_t(row) * stride + matrix.rows);
    return result;
}

std::vector<float> row_of(const Weights& weights, int tensor, int row) {
    const Matrix& matrix = weights.matrix(tensor);
    if (row < 0 || row >= matrix.rows) throw std::out_of_range("no such row");
    std::vector<float> numbers(matrix.columns);
    read_row(matrix, row, numbers.data());
    return numbers;
}

}  // namespace
}  // namespace slipstream

NB_MODULE(_native, m) {
    using namespace slipstream;
    nb::exception<BadFile>(m, "BadFile", PyExc_ValueError);
    m.def("instruction_sets", &instruction_sets);
    m.def("load_weights", &load_weights, "paths"_a, "tensors"_a, "threads"_a, "progress"_a.none());
    m.def("weight_bytes", &weight_bytes, "tensors"_a);
    m.def("memory_needed", &memory_needed, nb::kw_only(), "windows"_a, "width"_a, "heads"_a, "key_value_heads"_a,
          "head_size"_a, "feed_forward"_a, "vocabulary"_a, "angles"_a, "fused"_a, "sessions"_a, "context"_a, "rows"_a,
          "threads"_a);
    m.def("multiply", &multiply, "weights"_a, "tensor"_a, "instruction_set"_a, "values"_a, "rows"_a);
    m.def("row_of", &row_of, "weights"_a, "tensor"_a, "row"_a);
    m.def("measure_read", &measure_read, "threads"_a, "byte_count"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("measure_dot", &measure_dot, "threads"_a, "instruction_set"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("measure_fma", &measure_fma, "threads"_a, "instruction_set"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("huge_page_bytes", &huge_page_bytes);
    nb::class_<Weights>(m, "Weights").def_prop_ro("bytes", &Weights::bytes);
    nb::enum_<Activation>(m, "Activation").value("SILU", Activation::kSilu).value("GELU", Activation::kGelu);
    nb::class_<ProgramBuilder>(m, "Program")
        .def(nb::init<std::shared_ptr<Weights>, int, int, int, int>(), "weights"_a, "width"_a, "heads"_a,
             "key_value_heads"_a, "head_size"_a)
        .def("embedding", &ProgramBuilder::embedding)
        .def("fuse", &ProgramBuilder::fuse, "tensor"_a, "before"_a.none(), "after"_a.none())
        .def("rotary", &ProgramBuilder::rotary)
        .def("layer", &ProgramBuilder::layer)
        .def("normalise", &ProgramBuilder::normalise)
        .def("join", &ProgramBuilder::join, "embedding"_a, "stream"_a.none())
        .def("read_embedding", &ProgramBuilder::read_embedding)
        .def("attend", &ProgramBuilder::attend)
        .def("gated_unit", &ProgramBuilder::gated_unit)
        .def("add_projected", &ProgramBuilder::add_projected)
        .def("add_normalised", &ProgramBuilder::add_normalised)
        .def("output", &ProgramBuilder::output)
        .def("check", [](const ProgramBuilder& builder) { builder.program().check(); });
    nb::class_<PythonModel>(m, "Model")
        .def(nb::init<const ProgramBuilder&, const std::string&, int, int, int, int>(), "program"_a,
             "instruction_set"_a, "threads"_a, "sessions"_a, "context"_a, "rows"_a)
        .def("forward", &PythonModel::forward, "segments"_a, "layers"_a, "hidden"_a, "beginnings"_a = nb::none())
        .def("logits", &PythonModel::logits)
        .def("hidden_state", &PythonModel::hidden_state)
        .def("embeddings", &PythonModel::embeddings)
        .def("cached", &PythonModel::cached)
        .def("profile", &PythonModel::profile)
        .def("buffer_bytes", [](PythonModel& self) { return int64_t(self.model().buffer_bytes()); })
        .def("open", [](PythonModel& self) { return self.model().cache().open(); })
        .def("close", [](PythonModel& self, int session) { self.model().cache().close(session); })
        .def("fork",
             [](PythonModel& self, int session, int length) { return self.model().cache().fork(session, length); })
        .def("truncate",
             [](PythonModel& self, int session, int length) { self.model().cache().truncate(session, length); })
        .def("reachable",
             [](PythonModel& self, int session, int length) { return self.model().cache().reachable(session, length); })
        .def("commit", [](PythonModel& self, int session,
                          const std::vector<int>& path) { self.model().cache().commit(session, path); })
        .def("hold", [](PythonModel& self, int session,
                        const std::vector<int>& path) { self.model().cache().hold(session, path); })
        .def("length", [](PythonModel& self, int session) { return self.model().cache().at(session).length; })
        .def("used", [](PythonModel& self, int session) { return self.model().cache().at(session).used(); })
        .def("free_blocks", [](PythonModel& self) { return self.model().cache().free_blocks(); });
}
