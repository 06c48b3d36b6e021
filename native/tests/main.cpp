// Runs all tests, or those whose names contain the argument.
#include <chrono>
#include <cstring>

#include "check.hpp"

int main(int count, char** arguments) {
    using namespace slipstream::tests;
    int run = 0;
    for (const Test& test : all()) {
        if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr) continue;
        const auto start = std::chrono::steady_clock::now();
        const int before = failures;
        test.run();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        std::printf("%-60s %6.2f s  %s\n", test.name, seconds.count(), failures == before ? "ok" : "FAILED");
        std::fflush(stdout);
        run++;
    }
    std::printf("%d tests, %d failures\n", run, failures.load());
    return run == 0 || failures > 0;
}
