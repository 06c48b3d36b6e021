// Threads that compute one forward together.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

// Waits until `flag` no longer holds `old`: first spinning, because the next stage is microseconds away, then asleep,
// because on a busy machine the thread that is waited for may need this very core.
void wait_while(std::atomic<uint32_t>& flag, uint32_t old);
void wake_all(std::atomic<uint32_t>& flag);

// All threads meet; what any of them wrote before, all of them see after.
class Barrier {
   public:
    explicit Barrier(int threads) : threads_(threads) {}
    void arrive_and_wait();

   private:
    const int threads_;
    std::atomic<int> arrived_{0};
    std::atomic<uint32_t> round_{0};
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

    int threads() const { return threads_; }
    // Before a forward: all threads at the same stage.
    void restart();

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

    Counter& counter(int stage, int thread) { return counters_[size_t(stage % kRing) * threads_ + thread]; }

    const int threads_;
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
    void barrier() { barrier_->arrive_and_wait(); }
    Shares& shares() { return *shares_; }
    int threads() const { return threads_; }

   private:
    void start();
    void work(int thread, uint32_t round);
    void stop();
    void revive_after_fork();

    const int threads_;
    std::mutex running_;
    std::unique_ptr<Barrier> barrier_;
    std::unique_ptr<Shares> shares_;
    // The workers' own: a child process leaves it to the parent's threads, which it does not have.
    struct Workers {
        std::vector<std::thread> threads;
        std::atomic<uint32_t> round{0};
        std::atomic<uint32_t> done{0};  // counts workers that finished the round
        std::atomic<bool> stopping{false};
    };
    std::unique_ptr<Workers> workers_;
    const std::function<void(int)>* job_ = nullptr;
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
