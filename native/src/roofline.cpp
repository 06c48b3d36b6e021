#include "roofline.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace slipstream {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRuns = 9;              // the best of these counts: others share the machine
constexpr double kRunSeconds = 0.02;  // long against waking a thread, short against a time slice
constexpr std::size_t kHugePage = std::size_t(2) << 20;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}

// Takes a value so that no compiler can leave out what made it.
template <class Value>
void keep(const Value& value) {
    asm volatile("" : : "r"(&value) : "memory");
}

// Seconds from the first thread's start to the last one's end, in the best of several runs of work(thread).
template <class Work>
double best_seconds(int threads, const Work& work) {
    struct Span {
        Clock::time_point begin, end;
    };
    std::vector<std::array<Span, kRuns>> spans(threads);
    std::barrier start(threads);
    {
        std::vector<std::jthread> workers;
        for (int thread = 0; thread < threads; thread++)
            workers.emplace_back([&, thread] {
                for (Span& span : spans[thread]) {
                    start.arrive_and_wait();
                    span.begin = Clock::now();
                    work(thread);
                    span.end = Clock::now();
                }
            });
    }
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run < kRuns; run++) {
        Span whole = spans[0][run];
        for (const auto& of_thread : spans) {
            whole.begin = std::min(whole.begin, of_thread[run].begin);
            whole.end = std::max(whole.end, of_thread[run].end);
        }
        best = std::min(best, seconds_between(whole.begin, whole.end));
    }
    return best;
}

// --- reading -------------------------------------------------------------------------------------------------------

// Anonymous memory in whole huge pages, as far as the system gives them.
class HugeBuffer {
   public:
    explicit HugeBuffer(std::size_t bytes) : size_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
        // One more page, so that an aligned part of the full size lies within.
        void* mapping = mmap(nullptr, size_ + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED) throw std::bad_alloc();
        mapping_ = mapping;
        const auto address = (reinterpret_cast<std::uintptr_t>(mapping) + kHugePage - 1) / kHugePage * kHugePage;
        data_ = reinterpret_cast<std::byte*>(address);
#if defined(MADV_HUGEPAGE)
        madvise(data_, size_, MADV_HUGEPAGE);
#endif
    }
    ~HugeBuffer() { munmap(mapping_, size_ + kHugePage); }
    HugeBuffer(const HugeBuffer&) = delete;
    HugeBuffer& operator=(const HugeBuffer&) = delete;

    // The share of one of `parts` threads, in whole huge pages.
    std::span<std::byte> part(int index, int parts) const {
        const std::size_t pages = size_ / kHugePage;
        const std::size_t begin = pages * index / parts, end = pages * (index + 1) / parts;
        return {data_ + begin * kHugePage, (end - begin) * kHugePage};
    }

   private:
    std::size_t size_;
    void* mapping_;
    std::byte* data_;
};

// Reads all bytes, a multiple of 256, into eight independent sums so that only memory can be the limit.
void read_portable(std::span<const std::byte> bytes) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(bytes.data());
    std::array<std::uint64_t, 8> sums{};
    for (std::size_t word = 0; word < bytes.size() / 8; word += sums.size())
        for (std::size_t lane = 0; lane < sums.size(); lane++) sums[lane] ^= words[word + lane];
    keep(sums);
}

#if defined(__x86_64__)

// Far enough ahead that a line has come from memory when its turn is there.
constexpr std::size_t kPrefetchBytes = 2048;

__attribute__((target("avx512f"))) void read_avx512(std::span<const std::byte> bytes) {
    __m512i sums[4];
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    for (const std::byte* place = bytes.data(); place != bytes.data() + bytes.size(); place += 256)
        for (int line = 0; line < 4; line++) {
            _mm_prefetch(reinterpret_cast<const char*>(place) + kPrefetchBytes + 64 * line, _MM_HINT_T0);
            sums[line] = _mm512_xor_si512(sums[line], _mm512_load_si512(place + 64 * line));
        }
    keep(sums);
}

#endif

using Reader = void (*)(std::span<const std::byte>);

std::vector<Reader> readers() {
    std::vector<Reader> all{read_portable};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) all.push_back(read_avx512);
#endif
    return all;
}

double read_rate(int threads, const HugeBuffer& buffer, std::size_t bytes, int passes, Reader read) {
    const double seconds = best_seconds(threads, [&](int thread) {
        for (int pass = 0; pass < passes; pass++) read(buffer.part(thread, threads));
    });
    return double(bytes) * passes / seconds / 1e9;
}

// --- multiplying ---------------------------------------------------------------------------------------------------

// `run` computes `rounds` rounds of `operations` multiply-adds each.
struct Kernel {
    std::string_view instruction_set;
    double operations;
    void (*run)(long rounds);
};

constexpr int kPortableLength = 1024;

void dot_portable(long rounds) {
    alignas(64) std::array<std::int8_t, kPortableLength> weights, inputs;
    weights.fill(3);
    inputs.fill(-5);
    for (long round = 0; round < rounds; round++) {
        keep(inputs);
        std::int32_t sum = 0;
        for (int index = 0; index < kPortableLength; index++) sum += std::int32_t(weights[index]) * inputs[index];
        keep(sum);
    }
}

void fma_portable(long rounds) {
    alignas(64) std::array<float, kPortableLength> weights, sums{};
    weights.fill(0.5F);
    for (long round = 0; round < rounds; round++) {
        for (int index = 0; index < kPortableLength; index++) sums[index] += weights[index] * 0.25F;
        keep(sums);
    }
}

#if defined(__x86_64__)

// Enough independent sums to hide the latency of two instructions a cycle, and few enough for 16 registers.
constexpr int kSums = 12;

// The empty assembly lets no compiler know the operand, so nothing moves out of the loop.
#define SLIPSTREAM_OPAQUE(operand) asm volatile("" : "+v"(operand))
#define SLIPSTREAM_OPAQUE_VEX(operand) asm volatile("" : "+x"(operand))

__attribute__((target("avx512f,avx512vnni"))) void dot_avx512vnni(long rounds) {
    __m512i sums[kSums], weights = _mm512_set1_epi8(3), inputs = _mm512_set1_epi8(-5);
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    for (long round = 0; round < rounds; round++) {
        SLIPSTREAM_OPAQUE(weights);
        for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, weights, inputs);
    }
    keep(sums);
}

__attribute__((target("avx2,avxvnni"))) void dot_avx2vnni(long rounds) {
    __m256i sums[kSums], weights = _mm256_set1_epi8(3), inputs = _mm256_set1_epi8(-5);
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    for (long round = 0; round < rounds; round++) {
        SLIPSTREAM_OPAQUE_VEX(weights);
        for (auto& sum : sums) sum = _mm256_dpbusd_avx_epi32(sum, weights, inputs);
    }
    keep(sums);
}

// 4-bit weights allow eight products to be added in 16 bits before they are widened: 8 * 2 * 15 * 127 < 2^15.
constexpr int kNarrowSteps = 8;

__attribute__((target("avx2"))) void dot_avx2(long rounds) {
    constexpr int kRows = 4;
    __m256i sums[kRows], weights = _mm256_set1_epi8(3), inputs = _mm256_set1_epi8(-5);
    const __m256i ones = _mm256_set1_epi16(1);
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    for (long round = 0; round < rounds; round++) {
        for (auto& sum : sums) {
            __m256i narrow = _mm256_setzero_si256();
            for (int step = 0; step < kNarrowSteps; step++) {
                SLIPSTREAM_OPAQUE_VEX(weights);
                narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(weights, inputs));
            }
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, ones));
        }
    }
    keep(sums);
}

__attribute__((target("avx512f,avx512bw"))) void dot_avx512(long rounds) {
    constexpr int kRows = 8;
    __m512i sums[kRows], weights = _mm512_set1_epi8(3), inputs = _mm512_set1_epi8(-5);
    const __m512i ones = _mm512_set1_epi16(1);
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    for (long round = 0; round < rounds; round++) {
        for (auto& sum : sums) {
            __m512i narrow = _mm512_setzero_si512();
            for (int step = 0; step < kNarrowSteps; step++) {
                SLIPSTREAM_OPAQUE(weights);
                narrow = _mm512_add_epi16(narrow, _mm512_maddubs_epi16(weights, inputs));
            }
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(narrow, ones));
        }
    }
    keep(sums);
}

__attribute__((target("avx512f"))) void fma_avx512(long rounds) {
    __m512 sums[kSums], weights = _mm512_set1_ps(0.5F), inputs = _mm512_set1_ps(0.25F);
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (long round = 0; round < rounds; round++) {
        SLIPSTREAM_OPAQUE(weights);
        for (auto& sum : sums) sum = _mm512_fmadd_ps(weights, inputs, sum);
    }
    keep(sums);
}

__attribute__((target("avx2,fma"))) void fma_avx2(long rounds) {
    __m256 sums[kSums], weights = _mm256_set1_ps(0.5F), inputs = _mm256_set1_ps(0.25F);
    for (auto& sum : sums) sum = _mm256_setzero_ps();
    for (long round = 0; round < rounds; round++) {
        SLIPSTREAM_OPAQUE_VEX(weights);
        for (auto& sum : sums) sum = _mm256_fmadd_ps(weights, inputs, sum);
    }
    keep(sums);
}

#undef SLIPSTREAM_OPAQUE
#undef SLIPSTREAM_OPAQUE_VEX

#elif defined(__aarch64__)

constexpr int kSums = 16;  // enough to hide the latency of four instructions a cycle

__attribute__((target("arch=armv8.2-a+dotprod"))) void dot_neon(long rounds) {
    int32x4_t sums[kSums];
    int8x16_t weights = vdupq_n_s8(3);
    const int8x16_t inputs = vdupq_n_s8(-5);
    for (auto& sum : sums) sum = vdupq_n_s32(0);
    for (long round = 0; round < rounds; round++) {
        asm volatile("" : "+w"(weights));
        for (auto& sum : sums) sum = vdotq_s32(sum, weights, inputs);
    }
    keep(sums);
}

void fma_neon(long rounds) {
    float32x4_t sums[kSums], weights = vdupq_n_f32(0.5F);
    const float32x4_t inputs = vdupq_n_f32(0.25F);
    for (auto& sum : sums) sum = vdupq_n_f32(0.0F);
    for (long round = 0; round < rounds; round++) {
        asm volatile("" : "+w"(weights));
        for (auto& sum : sums) sum = vfmaq_f32(sum, weights, inputs);
    }
    keep(sums);
}

#endif

constexpr Kernel kDots[] = {
#if defined(__x86_64__)
    {"avx512vnni", kSums * 64, dot_avx512vnni},    {"avx2vnni", kSums * 32, dot_avx2vnni},
    {"avx512", 8 * kNarrowSteps * 64, dot_avx512}, {"avx2", 4 * kNarrowSteps * 32, dot_avx2},
#elif defined(__aarch64__)
    {"neon", kSums * 16, dot_neon},
#endif
    {"portable", kPortableLength, dot_portable},
};

constexpr Kernel kFmas[] = {
#if defined(__x86_64__)
    {"avx512vnni", kSums * 16, fma_avx512},      {"avx2vnni", kSums * 8, fma_avx2},
    {"avx512", kSums * 16, fma_avx512},          {"avx2", kSums * 8, fma_avx2},
#elif defined(__aarch64__)
    {"neon", kSums * 4, fma_neon},
#endif
    {"portable", kPortableLength, fma_portable},
};

const Kernel& choose(std::span<const Kernel> kernels, std::string_view instruction_set) {
    const std::vector<std::string> usable = instruction_sets();
    const std::string_view name = instruction_set.empty() ? std::string_view(usable.front()) : instruction_set;
    if (std::find(usable.begin(), usable.end(), name) != usable.end())
        for (const Kernel& kernel : kernels)
            if (kernel.instruction_set == name) return kernel;
    throw std::invalid_argument("this CPU has no instruction set " + std::string(name));
}

// Rounds that take about kRunSeconds on one thread.
long rounds_for(const Kernel& kernel) {
    for (long rounds = 1024;; rounds *= 2) {
        const auto begin = Clock::now();
        kernel.run(rounds);
        if (seconds_between(begin, Clock::now()) > kRunSeconds / 2) return 2 * rounds;
    }
}

double multiply_rate(int threads, const Kernel& kernel) {
    const long rounds = rounds_for(kernel);
    const double seconds = best_seconds(threads, [&](int) { kernel.run(rounds); });
    return kernel.operations * double(rounds) * threads / seconds / 1e9;
}

void require_threads(int threads) {
    if (threads < 1) throw std::invalid_argument("at least one thread is needed");
}

}  // namespace

double measure_read(int threads, std::size_t bytes) {
    require_threads(threads);
    const HugeBuffer buffer(bytes);
    std::size_t total = 0;
    {
        std::vector<std::jthread> writers;  // memory is placed where it is first written
        for (int thread = 0; thread < threads; thread++) {
            const auto part = buffer.part(thread, threads);
            total += part.size();
            writers.emplace_back([part] { std::fill(part.begin(), part.end(), std::byte{1}); });
        }
    }
    double best = 0;
    for (const Reader read : readers()) {
        const double once = read_rate(threads, buffer, total, 1, read);
        const int passes = std::max(1, int(kRunSeconds * once * 1e9 / double(total)));
        best = std::max({best, once, read_rate(threads, buffer, total, passes, read)});
    }
    return best;
}

double measure_dot(int threads, std::string_view instruction_set) {
    require_threads(threads);
    return multiply_rate(threads, choose(kDots, instruction_set));
}

double measure_fma(int threads, std::string_view instruction_set) {
    require_threads(threads);
    return multiply_rate(threads, choose(kFmas, instruction_set));
}

std::size_t huge_page_bytes() {
    std::ifstream file("/proc/self/smaps_rollup");
    for (std::string key; file >> key;) {
        std::size_t kilobytes = 0;
        if (key == "AnonHugePages:" && file >> kilobytes) return kilobytes * 1024;
    }
    return 0;
}

}  // namespace slipstream
