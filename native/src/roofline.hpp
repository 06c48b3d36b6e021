// What this machine can do at most, measured: the limits that benchmarks hold a forward's time against.
#pragma once

#include <cstddef>
#include <string_view>

namespace slipstream {

// GB/s (1e9 bytes) at which `threads` threads together read `bytes` of memory in huge pages, in order and with nothing
// else to do. Give it the size of the weights, so that caches help it as much as they help a forward.
double measure_read(int threads, std::size_t bytes);

// 1e9 8-bit multiply-adds a second of `threads` threads on data in registers, with the instructions that a matrix
// product of this instruction set uses, one of instruction_sets(); empty is the best this CPU has.
// Throws std::invalid_argument for a name that is unknown or that this CPU lacks.
double measure_dot(int threads, std::string_view instruction_set = {});

// The same for 32-bit float multiply-adds, which F32, F16 and BF16 weights need.
double measure_fma(int threads, std::string_view instruction_set = {});

// Bytes of this process that lie in transparent huge pages now; 0 where the system does not say.
std::size_t huge_page_bytes();

}  // namespace slipstream
