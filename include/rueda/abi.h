// libstdc++ has two ABIs, which differ in std::string and every type that contains one. A program
// built with the old ABI would compile, but fail to link against the library.
#pragma once

#include <string>  // any libstdc++ header defines _GLIBCXX_USE_CXX11_ABI

// The CMake package of an installed library defines RUEDA_CXX11_ABI if the library has the new ABI.
#if defined(RUEDA_CXX11_ABI) && defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "librueda has the new ABI of libstdc++: use a LibTorch that has it, too"
#endif
