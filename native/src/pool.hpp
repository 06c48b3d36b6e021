// Threads that compute one forward together.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

using Clock = std::chrono::steady_clock;

// Waits until `flag` no longer holds `old`: first spinning, because the next stage is microseconds away, then asleep,
// because on a busy machine the thread that is waited for may need this very core. Returns how long it took if it
// slept.
Clock::duration wait_while(std::atomic<uint32_t>& flag, uint32_t old);
void wake_all(std::atomic<uint32_t>& flag);

// Threads meet; what any of them wrote before, all of them see after.
class Barrier {
   public:
    Clock::duration arrive_and_wait(int threads);

   private:
    std::atomic<int> arrived_{0};
    std::atomic<uint32_t> round_{0};
};

// How many threads to compute with. Where other processes are at work, the system lets one of our threads wait for
// milliseconds while all others wait for it; one thread less is then faster than one thread too many. What counts is
// the share of the last runs' time: a thread that comes late once in a while is worth having. More are tried again
// after a while, which doubles each time that it was too early.
class Crowd {
   public:
    explicit Crowd(int threads) : most_(threads), now_(threads) {}

    // For a run that starts at `start`.
    int threads(Clock::time_point start) const { return now_ < most_ && start >= retry_ ? now_ + 1 : now_; }
    // A run on `used` threads from `start` to `end` spent this much in long waits.
    void observe(int used, Clock::duration waited, Clock::time_point start, Clock::time_point end);

   private:
    void settle(int threads, Clock::time_point now);

    static constexpr auto kShortest = std::chrono::milliseconds(20), kLongest = std::chrono::milliseconds(1000);
    // Time without loss that every number of threads begins with.
    static constexpr auto kMemory = std::chrono::milliseconds(20);

    const int most_;
    int now_;
    Clock::duration patience_ = kShortest, spent_ = kMemory, lost_{};
    Clock::time_point retry_, since_;
};

// The units of one stage after another, shared out to the threads. Each starts on a contiguous part of its own, so
// that it reads weights as one stream, and takes from the others' parts when it is done: a thread that the system
// has put to sleep holds up no more than the chunk it was in.
class Shares {
   public:
    explicit Shares(int threads);

    // Calls body(first, last) for chunks of [0, units) until none is left. Every thread calls this with the same
    // arguments, then meets the others at the barrier, before the next stage begins.
    template <class Body>
    void each(int thread, int units, Body&& body);

    // Before a run on this many threads: all at the same stage.
    void restart(int threads);

   private:
    struct alignas(64) Counter {
        std::atomic<int> next{0};
    };
    struct alignas(64) Stage {
        int index = 0;
    };
    // A thread resets its counter two stages ahead: nobody can be there yet, and everybody will see it.
    static constexpr int kRing = 4;
    static constexpr int kChunks = 32;  // of each thread's part: small enough to share the rest evenly

    Counter& counter(int stage, int thread) { return counters_[size_t(stage % kRing) * most_ + thread]; }

    const int most_;
    int threads_;
    std::unique_ptr<Counter[]> counters_;
    std::unique_ptr<Stage[]> stages_;
};

class ThreadPool {
   public:
    // One pool for all models with as many threads: idle threads of another model's pool would be in the way.
    static std::shared_ptr<ThreadPool> shared(int threads);

    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;

    // Runs job(thread) on all threads and returns when all are done; the caller is thread 0. One run at a time:
    // others wait. The job must not throw.
    void run(const std::function<void(int)>& job);
    // The same on as many threads as the machine lets run: fewer where others are at work.
    void run_in_crowd(const std::function<void(int)>& job);
    // For all threads of a run.
    void barrier();
    Shares& shares() { return *shares_; }
    int threads() const { return threads_; }

   private:
    static constexpr uint32_t kRoundStep = 1024;  // more than there can be threads

    // Whose run it is; others wait, and a thread that would wait for itself gets std::logic_error.
    struct Turn {
        explicit Turn(ThreadPool& pool);
        ~Turn();
        Turn(const Turn&) = delete;
        ThreadPool& pool;
    };

    void run_on(int threads, const std::function<void(int)>& job);
    void note(Clock::duration waited);
    void start();
    void work(int thread, uint32_t seen);
    void stop();
    void revive_after_fork();

    const int threads_;
    std::unique_ptr<std::mutex> running_{new std::mutex};
    std::atomic<std::thread::id> runner_;
    std::unique_ptr<Barrier> barrier_;
    std::unique_ptr<Shares> shares_;
    // The workers' own: a child process leaves it to the parent's threads, which it does not have.
    struct Workers {
        std::vector<std::thread> threads;
        std::atomic<uint32_t> round{0};  // kRoundStep x its number + its threads
        std::atomic<uint32_t> done{0};   // counts workers that finished the round
        std::atomic<bool> stopping{false};
    };
    std::unique_ptr<Workers> workers_;
    const std::function<void(int)>* job_ = nullptr;
    int active_ = 0;  // threads of the run
    Crowd crowd_;
    std::atomic<int64_t> waited_{0};  // in the clock's units
    int process_ = 0;
};

template <class Body>
void Shares::each(int thread, int units, Body&& body) {
    const int stage = stages_[thread].index++;
    counter(stage + 2, thread).next.store(0, std::memory_order_relaxed);
    const int chunk = std::max(1, units / (threads_ * kChunks));
    for (int turn = 0; turn < threads_; turn++) {
        const int owner = (thread + turn) % threads_;
        const int first = int(int64_t(units) * owner / threads_), last = int(int64_t(units) * (owner + 1) / threads_);
        for (;;) {
            const int start = first + counter(stage, owner).next.fetch_add(chunk, std::memory_order_relaxed);
            if (start >= last) break;
            body(start, std::min(start + chunk, last));
        }
    }
}

}  // namespace slipstream
