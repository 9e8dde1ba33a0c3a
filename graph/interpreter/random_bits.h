// Which elements dropout keeps, and what the op random draws.
#ifndef TACC_GRAPH_INTERPRETER_RANDOM_BITS_H_
#define TACC_GRAPH_INTERPRETER_RANDOM_BITS_H_

#include <cstdint>

namespace tacc::interpreter {

struct DropoutKey {
  double rate = 0;
  int64_t seed = 0, key = 0;
};

// Whether element `element` of a sample is kept in a step: as kernels/contract/dropout.h says, for steps, samples and
// rows of four elements below 2^32.
bool IsKept(const DropoutKey& dropout, int64_t element, double sample, double step);

// What `random` draws for an element of a sample, as kernels/contract/dropout.h says, within the same limits.
double DrawnUniform(int64_t seed, int64_t key, int64_t element, double sample, double step);
double DrawnNormal(int64_t seed, int64_t key, int64_t element, double sample, double step);

}  // namespace tacc::interpreter

#endif  // TACC_GRAPH_INTERPRETER_RANDOM_BITS_H_
