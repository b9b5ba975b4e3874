// What the tests of rueda/torch.h expect of tensors and errors.
#pragma once

#include <rueda/torch.h>

#include <stdexcept>
#include <string>

namespace rueda::test {

inline void expect(bool condition, const std::string& what) {
  if (condition) return;
  const std::string who = is_initialized() ? "rank " + std::to_string(rank()) : "after the end";
  throw std::runtime_error(who + ": not so: " + what);
}

inline void expect_alike(bool condition, const torch::Tensor& found, const torch::Tensor& expected,
                         const std::string& what) {
  if (condition) return;
  expect(false, libtorch::detail::text(what, ": found ", found, "\nexpected ", expected));
}

// Requires equal shape, dtype and values.
inline void expect_equal(const torch::Tensor& found, const torch::Tensor& expected,
                         const std::string& what) {
  const bool same = found.scalar_type() == expected.scalar_type() &&
                    found.sizes() == expected.sizes() && torch::equal(found, expected);
  expect_alike(same, found, expected, what);
}

inline void expect_close(const torch::Tensor& found, const torch::Tensor& expected,
                         const std::string& what) {
  expect_alike(torch::allclose(found, expected, 1e-5, 1e-6), found, expected, what);
}

// Requires that `call` throws an E whose message contains `part`.
template <class E, class Call>
void expect_throws(Call&& call, const std::string& part) {
  try {
    call();
  } catch (const E& error) {
    const std::string message = error.what();
    expect(message.find(part) != std::string::npos, "'" + part + "' is in: " + message);
    return;
  }
  expect(false, "an error with '" + part + "' is thrown");
}

}  // namespace rueda::test
