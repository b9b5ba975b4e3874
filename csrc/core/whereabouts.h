// Where the application is in its own code, for the ranks that wait for this one. The engine knows
// nothing of the application's language: a language binding registers a guide that answers. Without
// one, as in a C++ program, nothing is reported.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "core/clock.h"

namespace rueda {

// Thread-safe.
class Whereabouts {
 public:
  // --- For the guide

  // `wake` is called when somebody asks, from a thread of the engine: it must not block. `excuse`:
  // what may keep the guide from answering, to be read after "rank 2 is": "in code that has not let
  // go of Python's GIL". Replaces a guide that was registered before.
  void register_guide(std::function<void()> wake, std::string excuse);
  // Nobody answers any more.
  void unregister_guide();
  // The number of the newest question; 0: nobody has asked yet.
  [[nodiscard]] std::uint64_t newest_question() const;
  // Where the application is, to be read after "rank 2 is": "at train.py:41 in load". Answers this
  // question and all earlier ones.
  void answer(std::uint64_t question, std::string text);

  // --- For the engine

  // Asks, and returns the number of the question; empty if there is no guide.
  std::optional<std::uint64_t> ask(Time now);
  // Empty while it is not answered.
  [[nodiscard]] std::optional<std::string> answer_to(std::uint64_t question) const;
  // What to report instead of an answer: the excuse, and how long there has been no answer.
  [[nodiscard]] std::string excuse(Time now) const;

 private:
  mutable std::mutex mutex_;
  std::function<void()> wake_;  // empty if there is no guide
  std::string excuse_;
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  std::string newest_answer_;
  Time unanswered_since_{};  // if asked_ > answered_
};

// The one of this process.
[[nodiscard]] Whereabouts& whereabouts();

}  // namespace rueda
