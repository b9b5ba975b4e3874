// How much a test does under a sanitizer. That looks at how code runs, not at what comes out of it:
// a race, a read out of bounds or an overflow shows when a line runs in one of the ways in which it
// can, and the hundredth random input or the fourth number of ranks adds nothing that the second
// did not. Each access costs many times as much there, so what looks for wrong results by a matrix
// or by repetitions does all of it in the release build only.
//
// Give a test fewer of what is alike (seeds, rounds, numbers of ranks, elements), never fewer of
// what takes another way through the code (transports, algorithms, kinds of memory), and leave what
// looks for races enough rounds to meet.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace rueda::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

// How many, or how large.
template <class T>
constexpr T effort(T full, T sanitized) {
  return is_sanitized ? sanitized : full;
}

// Which of a matrix: GENERATE(from_range(efforts<int>({1, 2, 3, 4}, {1, 3}))).
template <class T>
std::vector<T> efforts(std::initializer_list<T> full, std::initializer_list<T> sanitized) {
  return is_sanitized ? sanitized : full;
}

// So many of a tensor's elements are drawn at random at most, and repeat from there on: under a
// sanitizer drawing takes longer than what is tested. A prime, so that no part of a tensor equals
// the next one.
inline constexpr std::size_t max_drawn = effort<std::size_t>(10'007, 1'009);

}  // namespace rueda::test
