// The functions of librueda_jax.so that python/rueda/jax registers and XLA calls.
#include <exception>
#include <utility>

#include "jax/call.h"
#include "jax/collectives.h"
#include "jax/pending.h"

namespace rueda::jax {

namespace {

// XLA asks for the version before the first call. What is used here has not changed since 0.1, so
// the answer is the caller's own version if the major version is the same.
bool answer_metadata(const ffi::CallFrame& frame) {
  if (frame.extension == nullptr || frame.extension->type != ffi::extension_metadata) return false;
  ffi::Metadata& metadata = *reinterpret_cast<ffi::MetadataExtension*>(frame.extension)->metadata;
  metadata.version.major_version = ffi::abi_major;
  metadata.version.minor_version =
      frame.api != nullptr && frame.api->version.major_version == ffi::abi_major
          ? frame.api->version.minor_version
          : ffi::abi_minor;
  return true;
}

ffi::Future* begin(const ffi::CallFrame& frame) {
  Completions& completions = Completions::instance();
  completions.start();
  Call call = read_call(frame);
  ffi::FutureCreate created{sizeof(created), nullptr, nullptr};
  if (frame.api->future_create(&created) != nullptr) {
    throw InternalError("XLA did not create a future");
  }
  try {
    locate(call);
    const bool compares = is_compared_first(call);
    std::vector<Handle> handles = compares ? std::vector{compare_trees(call)} : submit(call);
    completions.add({frame.api, created.future, std::move(call), std::move(handles), compares});
  } catch (const Error& error) {
    fail(*frame.api, created.future, error.code(), error.what());
  }
  return created.future;
}

}  // namespace

}  // namespace rueda::jax

extern "C" {

// Begins a collective and returns; the future completes when the results are available.
__attribute__((visibility("default"))) rueda::ffi::Error* rueda_jax_collective(
    rueda::ffi::CallFrame* frame) {
  using namespace rueda;
  if (jax::answer_metadata(*frame)) return nullptr;
  try {
    frame->future = jax::begin(*frame);
    return nullptr;
  } catch (const Error& error) {
    return jax::make_error(*frame->api, error.code(), error.what());
  } catch (const std::exception& error) {
    return jax::make_error(*frame->api, ErrorCode::internal, error.what());
  }
}

// Which world the process is in, for calls on process sets: see python/rueda/jax/library.py.
__attribute__((visibility("default"))) void rueda_jax_set_world(int number) {
  rueda::jax::set_world(number);
}

// Does nothing. For its purpose see python/rueda/jax/in_place.py.
__attribute__((visibility("default"))) rueda::ffi::Error* rueda_jax_nothing(
    rueda::ffi::CallFrame* frame) {
  rueda::jax::answer_metadata(*frame);
  return nullptr;
}

}  // extern "C"
