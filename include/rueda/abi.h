// libstdc++ has two ABIs, in which std::string and what contains one are different types: a program
// with the old one would compile, and then find none of the library's functions.
#pragma once

#include <string>  // any of libstdc++'s headers: they tell the ABI

// An installed library's CMake package defines RUEDA_CXX11_ABI where the library has the new one.
#if defined(RUEDA_CXX11_ABI) && defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "librueda has the new ABI of libstdc++: use a LibTorch that has it, too"
#endif
