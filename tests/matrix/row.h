// A row of the matrix: how far a layout is from one rank.
#ifndef TACC_TESTS_MATRIX_ROW_H_
#define TACC_TESTS_MATRIX_ROW_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/passes/pipeline.h"
#include "tests/matrix/job.h"
#include "tests/matrix/layouts.h"

namespace tacc::matrix {

// What one rank does alone, to which layouts are compared.
struct Reference {
  graph::Compiled compiled;
  worker::TrainingLog log;
};

// References by job, each trained when it is first asked for.
class References {
 public:
  explicit References(const graph::OpTable& ops) : ops_(ops) {}
  absl::StatusOr<const Reference*> Of(const Job& job);

 private:
  const graph::OpTable& ops_;
  std::map<Job, Reference> references_;
};

// A layout against one rank. Shares are of the rank that has most, over what it has when work and memory are shared out
// equally: 1 is equal.
struct Row {
  std::string refusal;         // why the product refuses it; then nothing else is known
  double loss_difference = 0;  // relative, the largest of all steps
  double norm_difference = 0;
  double flops_share = 0;                // of matrix products; of a pipeline: of the stage's
  double bytes_share = 0;                // of weights and optimizer states
  double least_sent = 0, most_sent = 0;  // bytes sent, over theory: of the stages
  // Bytes counted by the ranks' transports, of the rank where it is most: over the plan's, and how far they are from
  // those of the collectives that the plan asks for.
  double counted_sent = 0, counting_difference = 0;
  bool same_experts = false;  // each token has gone to the experts that it goes to on one rank, and to all
};
// Errors: of references and runs; a layout that cannot be compiled is a refusal.
absl::StatusOr<Row> MeasureRow(const std::string& family, const Layout& layout, const graph::OpTable& ops,
                               References& references);

// The largest relative difference of two runs' numbers; infinite when one has more of them.
double Difference(const std::vector<double>& many, const std::vector<double>& one);

// How the loss may differ: by the order of sums; more where a ring splits the softmax.
double LossTolerance(const Layout& layout);

}  // namespace tacc::matrix

#endif  // TACC_TESTS_MATRIX_ROW_H_
