#include "pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slipstream {
namespace {

// Longer than a stage of a small model, shorter than anything a person notices or a scheduler rewards.
constexpr auto kSpin = std::chrono::microseconds(60);

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void wait_while(std::atomic<uint32_t>& flag, uint32_t old) {
    const auto changed = [&] { return flag.load(std::memory_order_acquire) != old; };
    if (changed()) return;
    const auto give_up = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; i++) {
            if (changed()) return;
            pause();
        }
    } while (std::chrono::steady_clock::now() < give_up);
    while (!changed()) flag.wait(old, std::memory_order_acquire);
}

void wake_all(std::atomic<uint32_t>& flag) { flag.notify_all(); }

void Barrier::arrive_and_wait() {
    if (threads_ == 1) return;
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
        wake_all(round_);
    } else {
        wait_while(round_, round);
    }
}

Shares::Shares(int threads)
    : threads_(threads), counters_(new Counter[size_t(kRing) * threads]), stages_(new Stage[threads]) {}

void Shares::restart() {
    for (int thread = 0; thread < threads_; thread++) stages_[thread].index = 0;
    for (int i = 0; i < kRing * threads_; i++) counters_[i].next.store(0, std::memory_order_relaxed);
}

std::shared_ptr<ThreadPool> ThreadPool::shared(int threads) {
    static std::mutex guard;
    static std::map<int, std::weak_ptr<ThreadPool>> pools;
    const std::lock_guard lock(guard);
    auto pool = pools[threads].lock();
    if (!pool) pools[threads] = pool = std::make_shared<ThreadPool>(threads);
    return pool;
}

ThreadPool::ThreadPool(int threads)
    : threads_(threads), barrier_(new Barrier(threads)), shares_(new Shares(threads)), process_(getpid()) {
    start();
}

ThreadPool::~ThreadPool() {
    if (process_ == getpid())
        stop();
    else
        (void)workers_.release();  // the threads stayed in the parent process; there is nothing to join
}

void ThreadPool::start() {
    workers_ = std::make_unique<Workers>();
    try {
        for (int thread = 1; thread < threads_; thread++)
            workers_->threads.emplace_back([this, thread] { work(thread, 0); });
    } catch (...) {
        stop();
        throw;
    }
}

void ThreadPool::stop() {
    workers_->stopping = true;
    workers_->round.fetch_add(1, std::memory_order_release);
    wake_all(workers_->round);
    for (auto& thread : workers_->threads) thread.join();
    workers_.reset();
}

void ThreadPool::revive_after_fork() {
    (void)workers_.release();
    barrier_ = std::make_unique<Barrier>(threads_);
    shares_ = std::make_unique<Shares>(threads_);
    process_ = getpid();
    start();
}

void ThreadPool::work(int thread, uint32_t round) {
    Workers& workers = *workers_;
    for (;; round++) {
        wait_while(workers.round, round);
        if (workers.stopping) return;
        (*job_)(thread);
        if (workers.done.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(threads_ - 1)) wake_all(workers.done);
    }
}

void ThreadPool::run(const std::function<void(int)>& job) {
    const std::lock_guard lock(running_);
    if (process_ != getpid()) revive_after_fork();
    shares_->restart();
    job_ = &job;
    workers_->done.store(0, std::memory_order_relaxed);
    workers_->round.fetch_add(1, std::memory_order_release);
    wake_all(workers_->round);
    job(0);
    for (uint32_t done; (done = workers_->done.load(std::memory_order_acquire)) != uint32_t(threads_ - 1);)
        wait_while(workers_->done, done);
    job_ = nullptr;
}

}  // namespace slipstream
