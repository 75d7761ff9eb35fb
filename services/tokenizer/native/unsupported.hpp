// What the encoder refuses when it is made.
#pragma once

#include <stdexcept>

namespace hostless::bpe {

// The vocabulary can't be encoded exactly; the message says why.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace hostless::bpe
