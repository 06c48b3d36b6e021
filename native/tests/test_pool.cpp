// Threads: every unit is computed once, and what was written before a barrier is seen after it.
#include <random>

#include "check.hpp"
#include "pool.hpp"

namespace slipstream {
namespace {

// A forward in miniature: stages of units, each of which reads what the stage before wrote. The numbers are no
// atomics, so that a thread sanitizer sees every pair of accesses that nothing orders.
void run_stages(ThreadPool& pool, const std::vector<int>& stages) {
    std::vector<std::vector<int>> taken;
    for (int units : stages) taken.emplace_back(units, 0);
    pool.run([&](int thread) {
        for (size_t stage = 0; stage < stages.size(); stage++) {
            pool.shares().each(thread, stages[stage], [&](int first, int last) {
                CHECK(0 <= first && first < last && last <= stages[stage]);
                for (int unit = first; unit < last; unit++) {
                    taken[stage][unit]++;
                    if (stage > 0)
                        for (int before : taken[stage - 1]) CHECK(before == 1);
                }
            });
            pool.barrier();
        }
    });
    for (const auto& stage : taken)
        for (int times : stage) CHECK(times == 1);
}

TEST(every_unit_is_computed_once) {
    std::mt19937 chance(1);
    for (int threads = 1; threads <= 5; threads++) {
        ThreadPool pool(threads);
        for (int run = 0; run < 60; run++) {
            std::vector<int> stages(1 + chance() % 12);
            for (int& units : stages) units = chance() % (run % 10 == 0 ? 150 : 12);
            run_stages(pool, stages);
        }
    }
}

TEST(a_barrier_orders_what_lies_on_its_sides) {
    for (int threads = 1; threads <= 4; threads++) {
        ThreadPool pool(threads);
        std::vector<int> written(threads, 0);
        pool.run([&](int thread) {
            for (int round = 1; round <= 300; round++) {
                written[thread] = round;
                pool.barrier();
                for (int other : written) CHECK(other == round);
                pool.barrier();
            }
        });
    }
}

TEST(run_returns_when_all_are_done) {
    for (int threads = 1; threads <= 4; threads++) {
        ThreadPool pool(threads);
        std::vector<int> times(threads, 0);
        for (int run = 1; run <= 500; run++) {
            pool.run([&](int thread) { times[thread]++; });
            for (int count : times) CHECK(count == run);
        }
    }
}

TEST(threads_may_have_gone_to_sleep_between_runs) {
    ThreadPool pool(3);
    for (int run = 0; run < 5; run++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));  // they spin for microseconds
        run_stages(pool, {7, 1, 30});
    }
}

TEST(pools_of_a_size_are_shared_while_they_are_used) {
    const auto one = ThreadPool::shared(2);
    CHECK(one == ThreadPool::shared(2));
    CHECK(one != ThreadPool::shared(3));
    CHECK(ThreadPool::shared(3)->threads() == 3);
}

TEST(callers_of_one_pool_wait_for_each_other) {
    const auto pool = ThreadPool::shared(2);
    int running = 0, runs = 0;  // guarded by the pool alone
    const auto call = [&] {
        for (int i = 0; i < 200; i++)
            pool->run([&](int thread) {
                if (thread != 0) return;
                CHECK(++running == 1);
                runs++;
                running--;
            });
    };
    std::thread other(call);
    call();
    other.join();
    CHECK(runs == 400);
}

TEST(a_crowded_machine_gets_fewer_threads_and_more_again) {
    using std::chrono::milliseconds;
    Crowd crowd(3);
    Clock::time_point now{};
    const auto run = [&](int waited) {
        const int used = crowd.threads(now);
        crowd.observe(used, milliseconds(waited), now, now + milliseconds(10));
        now += milliseconds(10);
        return used;
    };
    for (int i = 0; i < 50; i++) CHECK(run(1) == 3);  // a tenth of the time: no reason
    for (int i = 0; i < 30; i++) run(0);
    for (int i = 0; i < 50; i++) CHECK(run(i % 8 ? 0 : 9) == 3);  // late once in a while: no reason either
    for (int i = 0; i < 30; i++) run(0);
    int runs = 0;
    while (run(5) == 3) runs++;
    CHECK(runs > 1 && runs < 8);
    while (run(5) == 2) runs++;
    CHECK(runs < 16);
    CHECK(run(0) == 1);
    now += milliseconds(200);
    CHECK(run(0) == 2);  // tried again, and it went well
    now += milliseconds(200);
    CHECK(run(9) == 3);  // too early: the next try waits longer
    CHECK(run(0) == 2);
    now += milliseconds(20);
    CHECK(run(0) == 2);
    now += milliseconds(3000);
    CHECK(run(0) == 3);
    for (int i = 0; i < 100; i++) CHECK(run(0) == 3);
    // Lost and back again: what was waited long ago no longer counts.
    while (run(5) == 3) continue;
    now += milliseconds(25);
    CHECK(run(0) == 3);
    Crowd alone(1);
    alone.observe(1, milliseconds(9), now, now + milliseconds(10));
    CHECK(alone.threads(now) == 1);
}

TEST(runs_in_a_crowd_compute_every_unit_once) {
    ThreadPool pool(4);
    for (int run = 0; run < 300; run++) {
        std::vector<int> taken(50, 0);
        std::vector<int> joined(4, 0);
        pool.run_in_crowd([&](int thread) {
            joined[thread] = 1;
            pool.shares().each(thread, 50, [&](int first, int last) {
                if (run % 7 == 0 && thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                for (int unit = first; unit < last; unit++) taken[unit]++;
            });
            pool.barrier();
        });
        for (int times : taken) CHECK(times == 1);
        CHECK(joined[0] == 1);
        if (run % 5 == 0) run_stages(pool, {7, 1, 30});  // on all threads, whatever the crowd
    }
}

TEST(pools_come_and_go) {
    for (int i = 0; i < 50; i++) {
        ThreadPool pool(1 + i % 4);
        if (i % 3) run_stages(pool, {5, 5});
    }
}

}  // namespace
}  // namespace slipstream
