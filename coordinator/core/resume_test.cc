#include "coordinator/core/resume.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

std::string OfAdapter(const std::string& config) {
  return nlohmann::json({{"trained", "8 of 29 parameters, ab"}, {"adapter_config", config}}).dump();
}

TEST(IdentityDifference, NamesTheOptionOfAdapters) {
  const std::string first = R"({"lora_alpha": 16, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]})";
  EXPECT_EQ(IdentityDifference(OfAdapter(first), OfAdapter(first)), "");
  EXPECT_EQ(IdentityDifference(OfAdapter(R"({"lora_alpha": 16, "lora_dropout": 0.1, "target_modules": ["q_proj"]})"),
                               OfAdapter(first)),
            R"(train.lora.lora_dropout was 0.0 and is now 0.1, )"
            R"(train.lora.target_modules was ["q_proj","v_proj"] and is now ["q_proj"])");
}

// A text that is no JSON object is shown as it is.
TEST(IdentityDifference, SaysAnAdapterThatItCannotRead) {
  EXPECT_EQ(IdentityDifference(OfAdapter("{}"), OfAdapter("[")), "train.lora was [ and is now {}");
}

}  // namespace
}  // namespace tacc::coordinator
