// Runs all tests, or those whose names contain the argument; says with which instruction sets.
#include <chrono>
#include <cstring>

#include "check.hpp"
#include "kernels.hpp"

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
    std::printf("%d tests, %d failures, with", run, failures.load());
    for (const std::string& name : slipstream::instruction_sets()) std::printf(" %s", name.c_str());
    std::printf("\n");
    return run == 0 || failures > 0;
}
