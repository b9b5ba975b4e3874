#include "coordinator/whereabouts_answers.h"

#include "plan/inquiry.h"

namespace rueda {

namespace {

// A few sets may stall at a time, each with its own root; more are not plausible.
constexpr std::size_t max_open = 64;
// The answering thread does not wake the engine, which polls instead: an answer mostly comes within
// a millisecond, and no rank asks more often than once per report.
constexpr Duration between_looks = std::chrono::milliseconds(2);

}  // namespace

bool WhereaboutsAnswers::receive(int peer, std::span<const std::byte> message, Time now) {
  const auto set_id = decode_whereabouts_question(message);
  if (!set_id || open_.size() >= max_open) return false;
  Question question{peer, *set_id, 0, now};
  const auto number = application_.ask(now);
  if (!number) {
    send(question, {});
    return true;
  }
  question.number = *number;
  open_.push_back(question);
  next_look_ = now;
  return true;
}

bool WhereaboutsAnswers::step(Time now) {
  if (open_.empty() || now < *next_look_) return false;
  const std::size_t answered = std::erase_if(open_, [&](const Question& question) {
    auto text = application_.answer_to(question.number);
    if (!text && now - question.asked >= answer_timeout) text = application_.excuse(now);
    if (text) send(question, *text);
    return text.has_value();
  });
  next_look_ = open_.empty() ? std::nullopt : std::optional(now + between_looks);
  return answered > 0;
}

void WhereaboutsAnswers::send(const Question& question, const std::string& text) {
  control_.send(question.peer, ControlMessage::whereabouts,
                encode(WhereaboutsAnswer{question.set_id, text}));
}

}  // namespace rueda
