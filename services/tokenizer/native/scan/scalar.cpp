#include "cut.hpp"

namespace hostless::scan {

namespace {

struct Scalar {
  static constexpr bool windows = false;
};

}  // namespace

Cut scalar_cutter(Pattern pattern) { return cut_for<Scalar>(pattern); }

}  // namespace hostless::scan
