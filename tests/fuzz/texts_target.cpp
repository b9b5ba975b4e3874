// What ranks tell each other when a world is formed, errors that travel, and where ranks are that
// others wait for.
#include <string>

#include "fuzz/script.h"
#include "membership/member_bootstrap.h"
#include "membership/world_facts.h"
#include "onehost/host_peer_info.h"
#include "plan/inquiry.h"
#include "plan/negotiation_message.h"

namespace rueda::fuzz::texts_target {

namespace {

enum class Kind { facts, peer_info, status, bootstrap, question, whereabouts };
constexpr int kinds = 6;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text));
}

RankFacts own_facts() {
  RankFacts facts;
  facts.version = RUEDA_VERSION;
  facts.build = build_identity();
  facts.host_identity = "host 1";
  facts.host_name = "h1";
  facts.beacon = "unix:@beacon";
  facts.process_id = 7;
  facts.options = agreed_options(Options());
  return facts;
}

void read_facts(std::span<const std::byte> bytes) {
  const auto facts = RankFacts::decode(text_of(bytes));
  if (!facts) return;
  const std::vector<RankFacts> all{own_facts(), facts.value(), own_facts()};
  static_cast<void>(check_builds_agree(all));
  static_cast<void>(check_options_agree(all));
  const Topology topology = topology_of(1, all);
  require(topology.local_rank < topology.local_size && topology.cross_rank < topology.cross_size);
}

void read_a_status(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const Status status = read_status(reader);
  if (!reader.ok()) return;
  Writer writer;
  write(writer, status);
  const Bytes again = writer.take();
  Reader second(again);
  require(read_status(second).to_string() == status.to_string() && second.at_end());
}

void read_bootstrap(std::span<const std::byte> bytes) {
  MemberBootstrap bootstrap({.send = [](int, const std::vector<std::byte>&) {},
                             .wait = [](Time) { return Status(ErrorCode::timeout, "over"); },
                             .secret = "a secret"},
                            {0, 3, 4}, 0);
  Script script(bytes);
  while (!script.is_over()) {
    const int from = script.below(6);
    bootstrap.receive(from, script.block());
  }
  static_cast<void>(bootstrap.get("key"));
  static_cast<void>(bootstrap.barrier(Time{}));
}

void read_question(std::span<const std::byte> bytes) {
  const auto set_id = decode_whereabouts_question(bytes);
  if (!set_id) return;
  require(decode_whereabouts_question(encode_whereabouts_question(*set_id)) == set_id);
}

void read_whereabouts(std::span<const std::byte> bytes) {
  const auto answer = decode_whereabouts_answer(bytes);
  if (!answer) return;
  require(answer->text.size() <= max_whereabouts);
  const auto again = decode_whereabouts_answer(encode(*answer));
  require(again && again->set_id == answer->set_id && again->text == answer->text);
}

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  switch (static_cast<Kind>(script.below(kinds))) {
    case Kind::facts: return read_facts(script.rest());
    case Kind::peer_info:
      static_cast<void>(HostPeerInfo::decode(1, text_of(script.rest())));
      return;
    case Kind::status: return read_a_status(script.rest());
    case Kind::bootstrap: return read_bootstrap(script.rest());
    case Kind::question: return read_question(script.rest());
    case Kind::whereabouts: return read_whereabouts(script.rest());
  }
}

std::vector<Bytes> seeds() {
  const auto seed = [](Kind kind, std::span<const std::byte> bytes) {
    return ScriptWriter().byte(static_cast<int>(kind)).raw(bytes).take();
  };
  Writer status;
  write(status, Status(ErrorCode::mismatch, "they differ", 3,
                       {.tensor = "x", .field = "shape", .values = {"[1]", "[2]"}}));
  Writer entries;
  entries.unsigned_integer(1);
  entries.unsigned_integer(1);
  entries.text("key");
  entries.text("value");
  HostPeerInfo info;
  info.process = 12;
  info.address = "unix:@there";
  info.processors = {0, 1, 2};
  return {
      seed(Kind::facts, bytes_of_text(own_facts().encode())),
      seed(Kind::peer_info, bytes_of_text(info.encode())),
      seed(Kind::status, status.take()),
      seed(Kind::question, encode_whereabouts_question(3)),
      seed(Kind::whereabouts, encode(WhereaboutsAnswer{3, "at train.py:41 in load"})),
      ScriptWriter().byte(static_cast<int>(Kind::bootstrap)).byte(3).block(entries.take()).take()};
}

}  // namespace
}  // namespace rueda::fuzz::texts_target

namespace rueda::fuzz {

const Target texts{"texts", texts_target::run, texts_target::seeds};

}  // namespace rueda::fuzz
