// A coordinator with TLS, against bearer tokens that it must not take: each method that it has, by reflection, with
// each.
#include <sys/stat.h>

#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "coordinator/testing/access_test.h"
#include "identity/access.h"
#include "identity/token.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using identity::Role;
using testing::HasSubstr;

class TokenAccessTest : public AccessTest {
 protected:
  std::string Token(const identity::Principal& principal, std::time_t issued) const {
    const absl::StatusOr<std::string> token = identity::MakeToken(pki_, principal, 1, issued);
    EXPECT_TRUE(token.ok()) << token.status();
    return token.ok() ? *token : "";
  }
  // Signed by the service's authority, whatever it says.
  std::string Signed(const nlohmann::json& header, const nlohmann::json& claims) const {
    const auto part = [](const nlohmann::json& json) { return absl::WebSafeBase64Escape(json.dump()); };
    const auto authority =
        identity::Authority::Read(ReadFile(Folder("ca") + "/ca.crt"), ReadFile(Folder("ca") + "/ca.key"));
    const std::string text = absl::StrCat(part(header), ".", part(claims));
    return absl::StrCat(text, ".", absl::WebSafeBase64Escape(*authority->SignEs256(text)));
  }
};

TEST_F(TokenAccessTest, BadTokensCallNothing) {
  const v1::Job job = Submit("alice", "toy");
  const identity::Principal admin = {Role::kAdmin, "admin", ""};
  const nlohmann::json header = {{"alg", "ES256"}, {"typ", "JWT"}};
  const nlohmann::json good = {{"iss", identity::kTokenIssuer},
                               {"aud", identity::kTokenAudience},
                               {"sub", "spiffe://tacc/admin/a"},
                               {"iat", now_},
                               {"nbf", now_ - 60},
                               {"exp", now_ + 3600}};
  const auto with = [&](const char* claim, const nlohmann::json& value) {
    nlohmann::json claims = good;
    claims[claim] = value;
    return "Bearer " + Signed(header, claims);
  };
  const std::string token = Token(admin, now_), bearer = "Bearer " + token;
  std::string altered = bearer;
  altered[altered.size() - 9] = altered[altered.size() - 9] == 'A' ? 'B' : 'A';
  const auto stranger = identity::Authority::Make(identity::ValidFor(2, now_));
  const std::pair<const char*, std::vector<std::string>> bad[] = {
      {"none at all", {}},
      {"alg none", {"Bearer " + Signed({{"alg", "none"}, {"typ", "JWT"}}, good)}},
      {"alg HS256", {"Bearer " + Signed({{"alg", "HS256"}, {"typ", "JWT"}}, good)}},
      {"altered", {altered}},
      {"of another authority", {"Bearer " + *identity::IssueToken(*stranger, admin, 1, now_)}},
      {"expired", {"Bearer " + Token(admin, now_ - 2 * 3600)}},
      {"not valid yet", {"Bearer " + Token(admin, now_ + 3600)}},
      {"for another service", {with("aud", "other-service")}},
      {"of a worker", {with("sub", "spiffe://tacc/worker/worker")}},
      {"of the server", {with("sub", "spiffe://tacc/server/server")}},
      {"of no role", {with("sub", "spiffe://tacc/root/a")}},
      {"too long", {"Bearer " + std::string(identity::kMaxTokenBytes + 1, 'a')}},
      {"two", {bearer, bearer}},
      {"two in one", {bearer + "," + bearer}},
      {"another scheme", {"Basic " + token}},
      {"no scheme", {token}},
  };
  v1::GetRequest request;
  request.set_job(job.id());
  const std::set<std::string> methods = Methods(Connect("admin"));
  const std::shared_ptr<grpc::Channel> channel = ConnectWithout(), certified = Connect("admin");
  ASSERT_TRUE(Call(channel, "/tacc.v1.CoordinatorService/Get", request.SerializeAsString(), nullptr, {bearer}).ok());
  ASSERT_TRUE(Call(channel, "/tacc.v1.CoordinatorService/Get", request.SerializeAsString(), nullptr,
                   {"Bearer " + Signed(header, good)})
                  .ok())
      << "what the bad ones alter";
  const std::string before = State();
  for (const auto& [name, authorizations] : bad) {
    const std::shared_ptr<grpc::Channel> own = ConnectWithout();  // Of all of them at once one would be too many.
    for (const std::string& method : methods) {
      const grpc::Status status = Call(own, method, request.SerializeAsString(), nullptr, authorizations);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << name << " " << method;
      EXPECT_THAT(status.error_message(), testing::Not(HasSubstr(token.substr(40)))) << name;
    }
    // A certificate makes no bad token good.
    if (authorizations.empty()) continue;
    EXPECT_EQ(Call(certified, "/tacc.v1.CoordinatorService/List", "", nullptr, authorizations).error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << name;
  }
  // gRPC itself refuses what it would not keep.
  EXPECT_EQ(Call(channel, "/tacc.v1.CoordinatorService/List", "", nullptr, {"Bearer " + std::string(9 << 10, 'a')})
                .error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(State(), before);
}

TEST_F(TokenAccessTest, ATokenIsItsHoldersAlone) {
  const std::string alice = "Bearer " + Token({Role::kUser, "alice", "vision"}, now_);
  const std::string bob = "Bearer " + Token({Role::kUser, "bob", "audio"}, now_);
  const std::string viewer = "Bearer " + Token({Role::kViewer, "v", ""}, now_);
  Submit("alice", "toy");
  const auto num_jobs = [](const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization) {
    std::string answer;
    const grpc::Status status = Call(channel, "/tacc.v1.CoordinatorService/List", "", &answer, {authorization});
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::ListResponse response;
    EXPECT_TRUE(response.ParseFromString(answer));
    return response.jobs_size();
  };
  // Also of a connection that others use at the same time, and of one with an administrator's certificate.
  for (const auto& channel : {ConnectWithout(), Connect("admin")}) {
    std::vector<std::thread> callers;
    for (const auto& [authorization, num_expected] : {std::pair(alice, 1), std::pair(bob, 0), std::pair(viewer, 1)}) {
      callers.emplace_back([&, authorization = authorization, num_expected = num_expected] {
        for (int i = 0; i < 50; ++i) EXPECT_EQ(num_jobs(channel, authorization), num_expected);
      });
    }
    for (std::thread& caller : callers) caller.join();
    for (const char* method : {"/tacc.v1.CoordinatorService/Shutdown", "/tacc.v1.WorkerService/Attach"}) {
      EXPECT_EQ(Call(channel, method, "", nullptr, {viewer}).error_code(), grpc::StatusCode::PERMISSION_DENIED);
    }
  }
  EXPECT_EQ(num_stops_, 0);
}

TEST_F(TokenAccessTest, ATokensHolderIsInTheAuditLogWithoutTheToken) {
  const std::string token = Token({Role::kUser, "carol", "vision"}, now_);
  v1::CancelRequest request;
  request.set_job("none");
  EXPECT_EQ(Call(ConnectWithout(), "/tacc.v1.CoordinatorService/Cancel", request.SerializeAsString(), nullptr,
                 {"Bearer " + token})
                .error_code(),
            grpc::StatusCode::NOT_FOUND);
  std::string log;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.state_dir))
    if (entry.is_regular_file()) log += ReadFile(entry.path().string());
  EXPECT_THAT(log, HasSubstr("user carol of project vision"));
  for (const absl::string_view part : absl::StrSplit(token, '.')) EXPECT_FALSE(absl::StrContains(log, part));
}

TEST_F(TokenAccessTest, AClientReadsItsTokenForEachCall) {
  const std::string folder = Folder("trust"), path = folder + "/token";
  std::filesystem::create_directory(folder);
  std::filesystem::copy(Folder("admin") + "/ca.crt", folder + "/ca.crt");
  const auto stub = v1::CoordinatorService::NewStub(identity::MakeChannel(server_->address(), {folder, "", path}, {}));
  const auto list = [&stub] {
    grpc::ClientContext context;
    v1::ListResponse response;
    return stub->List(&context, {}, &response);
  };
  EXPECT_THAT(identity::TokenProblem(list().error_message()), HasSubstr("cannot read " + path));
  const auto write = [&path](const std::string& token, mode_t mode) {
    std::ofstream(path) << token << "\n";
    chmod(path.c_str(), mode);
  };
  write(Token({Role::kMetrics, "m", ""}, now_), 0600);
  EXPECT_EQ(list().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  write(Token({Role::kViewer, "v", ""}, now_), 0600);
  EXPECT_TRUE(list().ok());
  write(Token({Role::kViewer, "v", ""}, now_), 0644);
  EXPECT_THAT(identity::TokenProblem(list().error_message()), HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace tacc::coordinator
