// Each method that a coordinator with TLS has, and all that a call of it could have changed.
#ifndef TACC_COORDINATOR_TESTING_ACCESS_TEST_H_
#define TACC_COORDINATOR_TESTING_ACCESS_TEST_H_

#include <gmock/gmock.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/testing/tls_server.h"

namespace tacc::coordinator {

inline constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
// What newer releases of gRPC have as well.
inline constexpr char kNewReflection[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
inline bool HasNewReflection() {
  return google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("grpc.reflection.v1.ServerReflection") !=
         nullptr;
}

// All rows of all tables.
inline std::string Rows(const std::string& database) {
  std::string text;
  sqlite3* db = nullptr;
  EXPECT_EQ(sqlite3_open_v2(database.c_str(), &db, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
  const auto each = [db](const std::string& query, const std::function<void(sqlite3_stmt*)>& take) {
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(db, query.c_str(), -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    while (sqlite3_step(statement) == SQLITE_ROW) take(statement);
    sqlite3_finalize(statement);
  };
  const auto column = [](sqlite3_stmt* row, int i) {
    const void* data = sqlite3_column_blob(row, i);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), sqlite3_column_bytes(row, i));
  };
  std::vector<std::string> tables;
  each("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
       [&](sqlite3_stmt* row) { tables.push_back(column(row, 0)); });
  EXPECT_THAT(tables, testing::Contains("facts"));
  for (const std::string& table : tables) {
    each(absl::StrCat("SELECT * FROM ", table), [&](sqlite3_stmt* row) {
      absl::StrAppend(&text, table, ":");
      for (int i = 0; i < sqlite3_column_count(row); ++i) absl::StrAppend(&text, " ", column(row, i));
      absl::StrAppend(&text, "\n");
    });
  }
  sqlite3_close(db);
  return text;
}

// "/SERVICE/METHOD" of all that the server says it has.
inline std::set<std::string> Methods(const std::shared_ptr<grpc::Channel>& channel) {
  std::string answer;
  const grpc::Status status = Call(channel, kReflection, std::string("\x3a\x00", 2), &answer);  // list_services: ""
  EXPECT_TRUE(status.ok()) << status.error_message();
  const google::protobuf::DescriptorPool& pool = *google::protobuf::DescriptorPool::generated_pool();
  google::protobuf::DynamicMessageFactory factory;
  const std::unique_ptr<google::protobuf::Message> response(
      factory.GetPrototype(pool.FindMessageTypeByName("grpc.reflection.v1alpha.ServerReflectionResponse"))->New());
  EXPECT_TRUE(response->ParseFromString(answer));
  std::string text;
  EXPECT_TRUE(google::protobuf::TextFormat::PrintToString(*response, &text));
  // Health is not made by protoc, so that no descriptor tells its methods.
  std::set<std::string> methods = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"};
  const std::regex name("name: \"([^\"]+)\"");
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at) {
    const std::string service = (*at)[1];
    const google::protobuf::ServiceDescriptor* descriptor = pool.FindServiceByName(service);
    if (descriptor == nullptr) {
      EXPECT_EQ(service, "grpc.health.v1.Health");
      continue;
    }
    for (int i = 0; i < descriptor->method_count(); ++i)
      methods.insert(absl::StrCat("/", service, "/", descriptor->method(i)->name()));
  }
  return methods;
}

class AccessTest : public TlsServerTest {
 protected:
  // A connection without a certificate.
  std::shared_ptr<grpc::Channel> ConnectWithout() const {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(ReadFile(Folder("admin") + "/ca.crt")));
    options.watch_root_certs();
    return grpc::CreateChannel(server_->address(), grpc::experimental::TlsCredentials(options));
  }
  // Another folder with what is in that of `name`, but for tls.pem.
  void MakeFolder(const std::string& folder, const std::string& name, const std::string& pem) const {
    std::filesystem::create_directory(Folder(folder));
    std::filesystem::copy(Folder(name) + "/ca.crt", Folder(folder) + "/ca.crt");
    std::ofstream(Folder(folder) + "/tls.pem") << pem;
  }

  // What anybody could have changed: rows and files.
  std::string State() const {
    std::string text = Rows(options_.state_dir + "/tacc.db");
    std::set<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.state_dir))
      if (!absl::StrContains(entry.path().string(), "tacc.db")) paths.insert(entry.path().string());
    for (const std::string& path : paths) absl::StrAppend(&text, path, "\n");
    return absl::StrCat(text, num_stops_.load(), " stops\n");
  }

  v1::Job Submit(const std::string& who, const std::string& name) {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    *request.mutable_spec() = TestSpec(name, absl::StrCat(dir_.path(), "/runs/", who, name), 1);
    request.set_request_id("r-" + name);
    v1::SubmitResponse response;
    const grpc::Status status = Client(who)->Submit(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_TESTING_ACCESS_TEST_H_
