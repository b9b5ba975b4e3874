// Where the application is in its own code, for the ranks that wait for this one. The engine knows
// nothing of the application's language: whoever binds it to one registers somebody who answers.
// Where nobody has, as in a program of C++, nothing is told.
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
  // --- Who answers

  // `wake`: called when somebody wants to know, from a thread of the engine: it must not block.
  // `excuse`: what keeps whoever answers from it, to be read after "rank 2 is": "in code that has
  // not let go of Python's GIL". Takes the place of who has registered before.
  void register_guide(std::function<void()> wake, std::string excuse);
  // Nobody answers any more.
  void unregister_guide();
  // The number of the newest question; 0: nobody has asked yet.
  [[nodiscard]] std::uint64_t newest_question() const;
  // Where the application is, to be read after "rank 2 is": "at train.py:41 in load". Answers that
  // question and all before it.
  void answer(std::uint64_t question, std::string text);

  // --- The engine

  // Asks, and returns the number of the question. Nothing where nobody has registered.
  std::optional<std::uint64_t> ask(Time now);
  // Nothing while it is not answered.
  [[nodiscard]] std::optional<std::string> answer_to(std::uint64_t question) const;
  // What to say in place of an answer: the excuse, and for how long nothing has been heard.
  [[nodiscard]] std::string excuse(Time now) const;

 private:
  mutable std::mutex mutex_;
  std::function<void()> wake_;  // empty where nobody has registered
  std::string excuse_;
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  std::string newest_answer_;
  Time unanswered_since_{};  // where asked_ > answered_
};

// Of this process.
[[nodiscard]] Whereabouts& whereabouts();

}  // namespace rueda
