// What callers of ours must not do: the Python side has checked it, so a failure is a mistake of ours.
#pragma once

#include <stdexcept>

namespace slipstream {

inline void require(bool condition, const char* what) {
    if (!condition) throw std::logic_error(what);
}

}  // namespace slipstream
