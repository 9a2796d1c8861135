#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

// The one exception type of the project. Its text is a single line that says
// what failed, with which values, and what to do about it; rank and host are
// added where the error is reported (see World::report).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A mistake in how the program was called: exit code 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A device without the memory that was asked for.
class OutOfMemory : public Error {
 public:
  OutOfMemory(const std::string& text, std::int64_t wanted_bytes)
      : Error(text), bytes(wanted_bytes) {}
  const std::int64_t bytes;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(fmt::format(text, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) throw Error(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace lockstep
