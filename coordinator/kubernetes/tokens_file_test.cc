#include "coordinator/kubernetes/tokens_file.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"

namespace tacc::coordinator {
namespace {

using testing::HasSubstr;

class TokensFileTest : public testing::Test {
 protected:
  absl::StatusOr<KubernetesTokens> Read(const std::string& text) const {
    std::ofstream(path_) << text;
    return ReadKubernetesTokens(path_);
  }

  const TestDirectory dir_;
  const std::string path_ = dir_.path() + "/tokens.yaml";
};

TEST_F(TokensFileTest, HasWhatAPodHas) {
  const auto tokens =
      Read("service_accounts:\n  vision/trainer: {role: user, project: vision}\n  ops/a.b: {role: admin, name: ops}\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->api_server, "https://kubernetes.default.svc");
  EXPECT_EQ(tokens->audience, "tacc-coordinator");
  EXPECT_EQ(tokens->ca_file, "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt");
  EXPECT_EQ(identity::Describe(tokens->service_accounts.at("vision/trainer")), "user vision_trainer of project vision");
  EXPECT_EQ(identity::Describe(tokens->service_accounts.at("ops/a.b")), "admin ops");
}

TEST_F(TokensFileTest, SaysWhereItIsWrong) {
  const std::string account = "service_accounts: {a/b: {role: viewer}}\n";
  const std::pair<std::string, const char*> wrong[] = {
      {"", "service_accounts"},
      {"audience: x\n", "none may call"},
      {"service_accounts: {}\n", "none may call"},
      {"service_accounts:\n  a: {role: viewer}\n", ":2:3: \"a\" is not NAMESPACE/NAME"},
      {"service_accounts:\n  a/b: {role: worker}\n", ":2:15: role = worker is not admin"},
      {"service_accounts:\n  a/b: {role: user}\n", "project"},
      {"service_accounts:\n  a/b: {role: viewer, project: p}\n", "has none, a user has"},
      {"service_accounts:\n  a/b.c: {role: viewer}\n", "name"},
      {"service_accounts:\n  a/b: {project: p}\n", "give it a role"},
      {"service_accounts:\n  a/b: viewer\n", "give it a role"},
      {"service_accounts:\n  a/b: {role: viewer, roll: x}\n", "roll: there is role, project and name"},
      {"service_accounts:\n  a/b: {role: viewer}\n  a/b: {role: admin}\n", ":3:3: a/b is there twice"},
      {"service_accounts:\n  a/b: {role: viewer, role: admin}\n", ":2:23: role is there twice"},
      {account + "service_accounts: {c/d: {role: admin}}\n", ":2:1: service_accounts is there twice"},
      {account + "audiences: [x]\n", ":2:1: audiences: there is"},
      {account + "audience: [x]\n", "audience: give one text"},
      {account + "audience: \"\"\n", "audience is empty"},
      {account + "api_server: http://10.0.0.1\n", ":2:13: api_server does not begin with https://"},
      {account + "audience: [\n", "tokens.yaml:"},
  };
  for (const auto& [text, message] : wrong) {
    const absl::Status status = Read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
  }
  EXPECT_THAT(std::string(ReadKubernetesTokens(dir_.path() + "/none").status().message()), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace tacc::coordinator
