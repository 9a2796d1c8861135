#pragma once

#include <omp.h>

#include <cstdint>

namespace lockstep {

// Below this many elements a loop isn't worth waking the other threads for.
constexpr std::int64_t parallel_threshold = 1 << 14;

// body(i) for i in [0, count), shared out over the OpenMP threads in equal
// runs. `elements` is the work of one i.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t elements, Body&& body) {
#pragma omp parallel for schedule( \
    static) if (count > 1 && count * elements >= parallel_threshold)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// How many threads a loop may run on.
inline std::int64_t thread_count() {
  return omp_get_max_threads();
}

// Which of the threads runs the current body, from 0.
inline std::int64_t thread_index() {
  return omp_get_thread_num();
}

// The same for work of uneven size: each thread takes the next i when free.
template <class Body>
void parallel_for_uneven(std::int64_t count, std::int64_t elements,
                         Body&& body) {
#pragma omp parallel for schedule( \
    dynamic) if (count > 1 && count * elements >= parallel_threshold)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// body(begin, end) for pieces of [0, count) whose bounds depend on nothing but
// count, so that what is summed per piece is the same on any number of threads.
constexpr std::int64_t piece_elements = 1 << 14;
constexpr std::int64_t pieces_of(std::int64_t count) {
  return (count + piece_elements - 1) / piece_elements;
}
template <class Body>
void parallel_pieces(std::int64_t count, Body&& body) {
  parallel_for(pieces_of(count), piece_elements, [&](std::int64_t piece) {
    const std::int64_t begin = piece * piece_elements;
    const std::int64_t end =
        count - begin < piece_elements ? count : begin + piece_elements;
    body(begin, end);
  });
}

}  // namespace lockstep
