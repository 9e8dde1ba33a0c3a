#include "worker/rank/program/testing/kernel_trial.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

using graph::Range;
using graph::TensorType;
using interpreter::Array;
using kernels::Dims;
using kernels::reference::Buffer;
using kernels::reference::MaxError;
using kernels::reference::Tensor;

using Ranges = std::vector<std::vector<Range>>;

Dims DimsOf(const TensorType& type) { return Dims(type.dims.begin(), type.dims.end()); }
kernels::DType DTypeOf(const TensorType& type) { return static_cast<kernels::DType>(type.dtype); }

Ranges Whole(const std::vector<TensorType>& types) {
  Ranges ranges;
  for (const TensorType& type : types) {
    ranges.emplace_back();
    for (int64_t d : type.dims) ranges.back().push_back({0, d});
  }
  return ranges;
}

}  // namespace

KernelTrial::KernelTrial(const std::string& text) : case_(*graph::ParseOpCase(ops_, text)) {
  const graph::OpCall call = graph::CallOf(case_.graph, case_.op_node());
  interpreter::Random random(1);
  const interpreter::Arrays leaves = graph::RandomLeaves(case_, random);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const TensorType& type = call.operands[i];
    in_.emplace_back(DTypeOf(type), Tensor(DimsOf(type), leaves.at(absl::StrCat("a", i)).values));
    // As rounded to the operand's type.
    arrays_.push_back({type.dims, in_.back().ToTensor().values});
  }
  for (const TensorType& type : call.results) out_.emplace_back(DTypeOf(type), DimsOf(type));
  request_.node = &case_.op_node();
  for (const Buffer& buffer : in_) request_.in.push_back(buffer);
  for (const Buffer& buffer : out_) request_.out.push_back(buffer);
  request_.in_ranges = Whole(call.operands);
  request_.out_ranges = Whole(call.results);
}

void KernelTrial::Check(double tolerance) {
  // What the kernel keeps on the device lies as its operands do.
  const auto keep = [this](const std::vector<char>& bytes) -> absl::StatusOr<const void*> {
    const auto size = static_cast<int64_t>(bytes.size());
    kept_.emplace_back(kernels::DType::kBool, Dims{size}, Buffer::Placement::kAligned);
    std::copy(bytes.begin(), bytes.end(), kept_.back().view().as<char>());
    return kept_.back().view().data;
  };
  const absl::StatusOr<KernelTable::Joint> joint =
      DeviceUnderTest().table.PrepareFirst(absl::MakeConstSpan(&request_, 1), keep);
  ASSERT_TRUE(joint.ok()) << joint.status();
  joint->kernel();
  interpreter::Request wanted;
  wanted.node = request_.node;
  for (const Array& array : arrays_) wanted.in.push_back(&array);
  wanted.out_types = graph::CallOf(case_.graph, case_.op_node()).results;
  wanted.in_ranges = request_.in_ranges;
  wanted.out_ranges = request_.out_ranges;
  const graph::OpCall call = graph::CallOf(case_.graph, case_.op_node());
  for (const TensorType& type : call.operands) wanted.in_logical.push_back(type.dims);
  for (const TensorType& type : call.results) wanted.out_logical.push_back(type.dims);
  const absl::StatusOr<interpreter::Results> results = interpreter::EvaluatorTable().Evaluate(wanted);
  ASSERT_TRUE(results.ok()) << results.status();
  for (size_t i = 0; i < out_.size(); ++i) {
    Tensor want(out_[i].view().dims, (*results)[i].values);
    EXPECT_LE(MaxError(out_[i].ToTensor(), Rounded(want, out_[i].view().dtype), 1), tolerance)
        << case_.text << ", result " << i;
    EXPECT_TRUE(out_[i].GuardsIntact()) << case_.text;
  }
  for (const Buffer& buffer : in_) EXPECT_TRUE(buffer.GuardsIntact()) << case_.text;
}

int64_t KernelTrial::PromisedBytes(const graph::Target& target) const {
  const graph::OpDef* op = ops_.Find(request_.node->op);
  return graph::WorkspaceBytes(*op, graph::CallOf(case_.graph, case_.op_node()), target, graph::Parts::kApart);
}

}  // namespace tacc::worker
