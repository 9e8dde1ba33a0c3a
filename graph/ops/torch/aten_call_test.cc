#include "graph/ops/torch/aten_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

absl::Status Check(const std::string& schema, const std::string& library = "", const std::string& source = "") {
  Attrs attrs;
  attrs["schema"] = schema;
  attrs["args"] = std::vector<std::string>{"%0"};
  if (!library.empty()) attrs["library"] = library;
  if (!source.empty()) attrs["source"] = source;
  return CheckAtenCall(attrs, 1);
}

TEST(AtenCall, ASchemaIsANameAndNoPath) {
  for (const char* schema : {"aten::cumsum.default", "torchvision::roi_align.default", "_x1::_y.dim_IntList"})
    EXPECT_TRUE(Check(schema).ok()) << Check(schema);
  for (const std::string schema : {"../../x::y", "../../x::y.default", "/tmp/x.so::y.default", "x::y", "x::y.",
                                   "::y.default", "x::.default", "x::y::z.default", "x y::z.default", "x::y.default;z",
                                   "x::y.a.b", "x\n::y.default", "\xc3\xa4::y.default", "", "neg", "x:y.default"}) {
    EXPECT_THAT(Check(schema).message(), HasSubstr("wanted NAMESPACE::NAME.OVERLOAD, each of letters, digits and _"))
        << schema;
  }
  const absl::Status too_long = Check("x::" + std::string(201, 'y') + ".default");
  EXPECT_THAT(too_long.message(), HasSubstr("wanted NAMESPACE::NAME.OVERLOAD"));
  EXPECT_LT(too_long.message().size(), 400u);
  EXPECT_THAT(Check("x\nerror: y").message(), HasSubstr("schema=\"x\\nerror: y\""));
}

TEST(AtenCall, WhatPeopleAreShownIsOneLine) {
  EXPECT_TRUE(Check("x::y.default", "/opt/a b/_C.so", "model.py:3").ok());
  for (const char* words : {"a\nerror: b", "a\"b", "\x1b[31m", "\x7f"}) {
    EXPECT_EQ(Check("x::y.default", words).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Check("x::y.default", "", words).message(), HasSubstr("without quotes and control characters"));
  }
  EXPECT_EQ(Check("x::y.default", "", std::string(1025, 'a')).message(),
            "source has 1025 bytes; wanted at most 1024, without quotes and control characters");
}

TEST(AtenCall, OthersThanAtenMayBeOfALibrary) {
  EXPECT_TRUE(IsOfLibTorch("aten::sort.default"));
  EXPECT_FALSE(IsOfLibTorch("atenx::sort.default"));
  EXPECT_FALSE(IsOfLibTorch("torchvision::roi_align.default"));
}

}  // namespace
}  // namespace tacc::graph
