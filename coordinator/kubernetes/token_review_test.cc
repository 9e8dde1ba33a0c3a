#include "coordinator/kubernetes/token_review.h"

#include <fstream>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using testing::HasSubstr;

KubernetesTokens Tokens() {
  KubernetesTokens tokens;
  tokens.service_accounts = {{"vision/trainer", {identity::Role::kUser, "vision_trainer", "vision"}}};
  return tokens;
}

nlohmann::json Good() {
  return {{"kind", "TokenReview"},
          {"status",
           {{"authenticated", true},
            {"audiences", {"other", "tacc-coordinator"}},
            {"user", {{"username", "system:serviceaccount:vision:trainer"}}}}}};
}

TEST(ReadTokenReview, IsOfTheServiceAccount) {
  const auto review = ReadTokenReview(Tokens(), Good().dump(), "opaque");
  ASSERT_TRUE(review.ok()) << review.status();
  EXPECT_EQ(identity::Describe(review->principal), "user vision_trainer of project vision");
  EXPECT_EQ(review->expires, std::numeric_limits<double>::infinity());
  const std::string token = absl::StrCat("e30.", absl::WebSafeBase64Escape("{\"exp\":1234}"), ".x");
  EXPECT_EQ(ReadTokenReview(Tokens(), Good().dump(), token)->expires, 1234);
}

TEST(ReadTokenReview, RefusesWhoIsNotMeant) {
  const auto problem = [](const char* at, const nlohmann::json& value) {
    nlohmann::json answer = Good();
    answer[nlohmann::json::json_pointer(at)] = value;
    const absl::Status status = ReadTokenReview(Tokens(), answer.dump(), "a.b.c").status();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(problem("/status/authenticated", false), HasSubstr("nor good to Kubernetes"));
  EXPECT_THAT(problem("/status/audiences", {"other", "more"}), HasSubstr("not for the audience tacc-coordinator"));
  EXPECT_THAT(problem("/status/audiences", nlohmann::json::array()), HasSubstr("not for the audience"));
  for (const char* name : {"system:serviceaccount:vision:other", "system:serviceaccount:vision:trainer:x",
                           "system:serviceaccount:vision/trainer", "vision/trainer", "system:admin", ""})
    EXPECT_THAT(problem("/status/user/username", name), HasSubstr("not among the coordinator's service_accounts"));
  nlohmann::json silent = Good();
  silent["status"].erase("audiences");  // An API server that knows no audiences.
  EXPECT_TRUE(absl::IsUnauthenticated(ReadTokenReview(Tokens(), silent.dump(), "a.b.c").status()));
  silent["status"].erase("authenticated");
  EXPECT_TRUE(absl::IsUnauthenticated(ReadTokenReview(Tokens(), silent.dump(), "a.b.c").status()));
}

TEST(ReadTokenReview, TakesNothingElseForAnAnswer) {
  nlohmann::json nobody = Good(), text = Good(), number = Good();
  nobody["status"].erase("user");
  text["status"]["authenticated"] = "true";
  number["status"]["audiences"] = 1;
  for (const std::string& answer : {std::string(), std::string("no JSON"), std::string("[]"), std::string("null"),
                                    std::string("{\"kind\":\"Status\"}"), std::string("{\"kind\":\"TokenReview\"}"),
                                    nobody.dump(), text.dump(), number.dump(), std::string(5000, '[')}) {
    const absl::Status status = ReadTokenReview(Tokens(), answer, "a.b.c").status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << answer << status;
  }
}

TEST(MakeTokenReviewer, NeedsItsFiles) {
  const TestDirectory dir;
  KubernetesTokens tokens = Tokens();
  tokens.token_file = dir.path() + "/token";
  tokens.ca_file = dir.path() + "/ca.crt";
  const auto problem = [&tokens] { return std::string(MakeTokenReviewer(tokens).status().message()); };
  EXPECT_THAT(problem(), HasSubstr(tokens.token_file + ": cannot be read"));
  std::ofstream(tokens.token_file) << "two words";
  EXPECT_THAT(problem(), HasSubstr("characters that none has"));
  std::ofstream(tokens.token_file) << "own.token\n";
  EXPECT_THAT(problem(), HasSubstr(tokens.ca_file + ": cannot be read"));
}

}  // namespace
}  // namespace tacc::coordinator
