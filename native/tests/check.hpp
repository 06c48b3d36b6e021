// The whole test framework: TEST(name) { CHECK(condition); }
#pragma once

#include <atomic>
#include <cstdio>
#include <vector>

namespace slipstream::tests {

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& all() {
    static std::vector<Test> tests;
    return tests;
}

inline bool add(Test test) {
    all().push_back(test);
    return true;
}

inline std::atomic<int> failures{0};

inline void check(bool holds, const char* condition, const char* file, int line) {
    if (holds) return;
    if (failures.fetch_add(1) < 20) std::printf("%s:%d: %s does not hold\n", file, line, condition);
}

template <class Exception, class Body>
bool throws(Body&& body) {
    try {
        body();
    } catch (const Exception&) {
        return true;
    }
    return false;
}

}  // namespace slipstream::tests

#define CHECK(condition) slipstream::tests::check(bool(condition), #condition, __FILE__, __LINE__)
#define TEST(name)                                                          \
    static void name();                                                     \
    static const bool name##_added = slipstream::tests::add({#name, name}); \
    static void name()
