// Text between Python and C++ that may be no UTF-8: names of files are bytes.
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <string>

namespace rueda::bindings {

// As os.fsdecode(): bytes that have no character stay what they are, as lone surrogates. Throws
// what Python raises, such as MemoryError.
[[nodiscard]] inline pybind11::str file_system_text(const std::string& bytes) {
  PyObject* const text =
      PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

// For people, who see bytes that are no UTF-8 as \xNN: can be printed anywhere. Throws as above.
[[nodiscard]] inline pybind11::str shown_text(const std::string& bytes) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

// A parameter that takes file_system_text(), as os.fsencode() does, or bytes.
struct FileSystemText {
  std::string bytes;
};

// What the C++ API takes of a dictionary of options.
[[nodiscard]] inline std::map<std::string, std::string> bytes_of(
    const std::map<std::string, FileSystemText>& options) {
  std::map<std::string, std::string> all;
  for (const auto& [name, text] : options) all.emplace(name, text.bytes);
  return all;
}

}  // namespace rueda::bindings

template <>
struct pybind11::detail::type_caster<rueda::bindings::FileSystemText> {
  PYBIND11_TYPE_CASTER(rueda::bindings::FileSystemText, const_name("str"));

  bool load(handle source, bool /*convert*/) {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(source.ptr(), &encoded) == 0) throw error_already_set();
    value.bytes = reinterpret_steal<pybind11::bytes>(encoded).cast<std::string>();
    return true;
  }
};
