// Tells ranks that wait for this one where its application is: the application's own answer, or, if
// it gives none within a moment, what keeps it from answering. Used by the owner of the progress
// lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/active_messages.h"
#include "core/clock.h"
#include "core/whereabouts.h"

namespace rueda {

class WhereaboutsAnswers {
 public:
  // How long the application has to answer; less than the asking rank waits (Inquiry::timeout).
  static constexpr Duration answer_timeout = std::chrono::milliseconds(400);

  // Keeps references to both.
  explicit WhereaboutsAnswers(ActiveMessages& control, Whereabouts& application = whereabouts())
      : control_(control), application_(application) {}

  // Takes a question; false if it is malformed.
  bool receive(int peer, std::span<const std::byte> message, Time now);
  // Sends the answers that are available; returns whether there were any.
  bool step(Time now);
  // When to call step() again; nothing while nobody has asked.
  [[nodiscard]] std::optional<Time> next_look() const { return next_look_; }

 private:
  struct Question {
    int peer = 0;
    int set_id = 0;
    std::uint64_t number = 0;  // Whereabouts::ask()
    Time asked{};
  };
  void send(const Question& question, const std::string& text);

  ActiveMessages& control_;
  Whereabouts& application_;
  std::vector<Question> open_;
  std::optional<Time> next_look_;
};

}  // namespace rueda
