// Which instruction sets this build has and this processor runs.
#include "kernels.hpp"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace slipstream {

#ifdef SLIPSTREAM_HAVE_AVX512VNNI
namespace avx512vnni {
extern const Kernels kernels;
}
#endif
#ifdef SLIPSTREAM_HAVE_AVX512
namespace avx512 {
extern const Kernels kernels;
}
#endif
#ifdef SLIPSTREAM_HAVE_AVX2VNNI
namespace avx2vnni {
extern const Kernels kernels;
}
#endif
#ifdef SLIPSTREAM_HAVE_AVX2
namespace avx2 {
extern const Kernels kernels;
}
#endif
#ifdef SLIPSTREAM_HAVE_NEON
namespace neon {
extern const Kernels kernels;
}
#endif
namespace portable {
extern const Kernels kernels;
}

namespace {

#if defined(__x86_64__)

[[maybe_unused]] bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

[[maybe_unused]] bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

[[maybe_unused]] bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

// Compilers learned the name "avxvnni" late; leaf 7, subleaf 1, EAX bit 4 says it.
[[maybe_unused]] bool has_avx_vnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}

#elif defined(__aarch64__)

[[maybe_unused]] bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true;  // every Arm processor of Apple's computers
#endif
}

#endif

std::vector<const Kernels*> usable() {
    std::vector<const Kernels*> found;
#ifdef SLIPSTREAM_HAVE_AVX512VNNI
    if (has_avx512_vnni()) found.push_back(&avx512vnni::kernels);
#endif
#ifdef SLIPSTREAM_HAVE_AVX2VNNI
    if (has_avx2() && has_avx_vnni()) found.push_back(&avx2vnni::kernels);
#endif
#ifdef SLIPSTREAM_HAVE_AVX512
    if (has_avx512()) found.push_back(&avx512::kernels);
#endif
#ifdef SLIPSTREAM_HAVE_AVX2
    if (has_avx2()) found.push_back(&avx2::kernels);
#endif
#ifdef SLIPSTREAM_HAVE_NEON
    if (has_dot_products()) found.push_back(&neon::kernels);
#endif
    found.push_back(&portable::kernels);
    return found;
}

}  // namespace

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : usable()) names.emplace_back(kernels->name);
    return names;
}

const Kernels& kernels_for(const std::string& name) {
    for (const Kernels* kernels : usable())
        if (kernels->name == name) return *kernels;
    throw std::invalid_argument("unknown instruction set " + name);
}

}  // namespace slipstream
