#ifndef TACC_TESTS_MATRIX_THEORY_H_
#define TACC_TESTS_MATRIX_THEORY_H_

#include <vector>

#include "graph/import/decoder/decoder.h"
#include "tests/matrix/job.h"
#include "tests/matrix/layouts.h"

namespace tacc::matrix {

// What one rank must send and hold, by arithmetic on the model's dims: nothing here has seen a program. Bytes, in f32.
struct StageTheory {
  double sent_bytes = 0;   // by a rank in a step
  double state_bytes = 0;  // of weights and optimizer states, were each split over all ranks that can split it
};
// By stage.
std::vector<StageTheory> TheoryOf(const Job& job, const graph::DecoderSpec& spec, const Layout& layout);

}  // namespace tacc::matrix

#endif  // TACC_TESTS_MATRIX_THEORY_H_
