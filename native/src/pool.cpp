#include "pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slipstream {
namespace {

// Longer than a stage of a small model, shorter than anything a person notices or a scheduler rewards.
constexpr auto kSpin = std::chrono::microseconds(60);
// No stage keeps one thread so much longer than the others; only the system does.
constexpr auto kLongWait = std::chrono::microseconds(500);

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Clock::duration wait_while(std::atomic<uint32_t>& flag, uint32_t old) {
    const auto changed = [&] { return flag.load(std::memory_order_acquire) != old; };
    if (changed()) return {};
    const auto start = Clock::now();
    do {
        for (int i = 0; i < 32; i++) {
            if (changed()) return {};
            pause();
        }
    } while (Clock::now() < start + kSpin);
    while (!changed()) flag.wait(old, std::memory_order_acquire);
    return Clock::now() - start;
}

void wake_all(std::atomic<uint32_t>& flag) { flag.notify_all(); }

Clock::duration Barrier::arrive_and_wait(int threads) {
    if (threads == 1) return {};
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads) return wait_while(round_, round);
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    wake_all(round_);
    return {};
}

void Crowd::observe(int used, Clock::duration waited, Clock::time_point start, Clock::time_point end) {
    if (used > now_) {
        if (5 * waited > end - start) {  // too early
            patience_ = std::min<Clock::duration>(2 * patience_, kLongest);
            retry_ = end + patience_;
            return;
        }
        settle(used, end);
    }
    if (used == 1) return;
    spent_ = spent_ * 7 / 8 + (end - start);
    lost_ = lost_ * 7 / 8 + waited;
    if (5 * lost_ <= spent_) return;
    const bool soon = end - since_ < 4 * patience_;
    patience_ = soon ? std::min<Clock::duration>(2 * patience_, kLongest) : kShortest;
    settle(used - 1, end);
}

void Crowd::settle(int threads, Clock::time_point now) {
    now_ = threads;
    since_ = now;
    retry_ = now + patience_;
    spent_ = kMemory;
    lost_ = {};
}

Shares::Shares(int threads)
    : most_(threads), threads_(threads), counters_(new Counter[size_t(kRing) * threads]), stages_(new Stage[threads]) {}

void Shares::restart(int threads) {
    threads_ = threads;
    for (int thread = 0; thread < most_; thread++) stages_[thread].index = 0;
    for (int i = 0; i < kRing * most_; i++) counters_[i].next.store(0, std::memory_order_relaxed);
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
    : threads_(threads), barrier_(new Barrier), shares_(new Shares(threads)), crowd_(threads), process_(getpid()) {
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
    workers_->round.fetch_add(kRoundStep, std::memory_order_release);
    wake_all(workers_->round);
    for (auto& thread : workers_->threads) thread.join();
    workers_.reset();
}

void ThreadPool::revive_after_fork() {
    (void)workers_.release();
    (void)running_.release();
    running_ = std::make_unique<std::mutex>();
    runner_ = std::thread::id();
    barrier_ = std::make_unique<Barrier>();
    process_ = getpid();
    start();
}

void ThreadPool::work(int thread, uint32_t seen) {
    Workers& workers = *workers_;
    for (;;) {
        wait_while(workers.round, seen);
        seen = workers.round.load(std::memory_order_acquire);
        if (workers.stopping) return;
        // Rounds without this thread pass it by, and nobody waits until it has noticed.
        const int threads = int(seen % kRoundStep);
        if (thread >= threads) continue;
        (*job_)(thread);
        if (workers.done.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(threads - 1)) wake_all(workers.done);
    }
}

ThreadPool::Turn::Turn(ThreadPool& pool) : pool(pool) {
    // Before locking: in a forked child the lock may be held by a thread that the child does not have.
    if (pool.process_ != getpid()) pool.revive_after_fork();
    // A signal handler runs on the thread whose forward it interrupts.
    if (pool.runner_ == std::this_thread::get_id()) throw std::logic_error("a forward is running on this thread");
    pool.running_->lock();
    pool.runner_ = std::this_thread::get_id();
}

ThreadPool::Turn::~Turn() {
    pool.runner_ = std::thread::id();
    pool.running_->unlock();
}

void ThreadPool::run(const std::function<void(int)>& job) {
    const Turn turn(*this);
    run_on(threads_, job);
}

void ThreadPool::run_in_crowd(const std::function<void(int)>& job) {
    const Turn turn(*this);
    const auto start = Clock::now();
    const int threads = crowd_.threads(start);
    waited_.store(0, std::memory_order_relaxed);
    run_on(threads, job);
    crowd_.observe(threads, Clock::duration(waited_.load(std::memory_order_relaxed)), start, Clock::now());
}

void ThreadPool::run_on(int threads, const std::function<void(int)>& job) {
    shares_->restart(threads);
    active_ = threads;
    if (threads == 1) return job(0);  // nobody is woken for nothing
    job_ = &job;
    workers_->done.store(0, std::memory_order_relaxed);
    const uint32_t round = workers_->round.load(std::memory_order_relaxed) / kRoundStep + 1;
    workers_->round.store(round * kRoundStep + threads, std::memory_order_release);
    wake_all(workers_->round);
    job(0);
    for (uint32_t done; (done = workers_->done.load(std::memory_order_acquire)) != uint32_t(threads - 1);)
        note(wait_while(workers_->done, done));
    job_ = nullptr;
}

void ThreadPool::barrier() { note(barrier_->arrive_and_wait(active_)); }

void ThreadPool::note(Clock::duration waited) {
    if (waited > kLongWait) waited_.fetch_add(waited.count(), std::memory_order_relaxed);
}

}  // namespace slipstream
