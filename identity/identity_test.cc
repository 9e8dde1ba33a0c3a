#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "identity/access.h"
#include "identity/folder.h"
#include "identity/roles_page.h"

namespace tacc::identity {
namespace {

using testing::HasSubstr;

const Principal kAlice = {Role::kUser, "alice", "vision"};
const Principal kServer = {Role::kServer, "server", ""};

class FolderTest : public testing::Test {
 protected:
  FolderTest() : base_(testing::TempDir() + "identity-" + std::to_string(getpid())), out_(base_ + "/pki") {
    std::filesystem::remove_all(base_);
    std::filesystem::create_directories(base_);
  }
  ~FolderTest() override { std::filesystem::remove_all(base_); }

  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  static int Mode(const std::string& path) {
    struct stat about {};
    return stat(path.c_str(), &about) == 0 ? static_cast<int>(about.st_mode & 07777) : -1;
  }
  absl::Status Make() {
    return MakeFolders(out_, soon_, {{kServer, {"localhost", "::1", "10.0.0.1"}, soon_}, {kAlice, {}, soon_}});
  }

  const std::time_t now_ = std::time(nullptr);
  const Validity soon_ = ValidFor(10, now_);
  const std::string base_, out_;
};

TEST_F(FolderTest, AreTheirHoldersAlone) {
  ASSERT_TRUE(Make().ok());
  for (const char* folder : {"", "/ca", "/server", "/alice"}) EXPECT_EQ(Mode(out_ + folder), 0700) << folder;
  for (const char* file : {"/ca/ca.crt", "/ca/ca.key", "/server/tls.pem", "/alice/ca.crt", "/alice/tls.pem"})
    EXPECT_EQ(Mode(out_ + file), 0600) << file;
  const auto holder = CheckFolder(out_ + "/alice", now_);
  ASSERT_TRUE(holder.ok()) << holder.status();
  EXPECT_EQ(Describe(*holder), "user alice of project vision");
  EXPECT_EQ(SpiffeUri(*holder), "spiffe://tacc/user/alice");
  EXPECT_THAT(HostsOf(out_ + "/server"), testing::ElementsAre("localhost", "::1", "10.0.0.1"));
  EXPECT_EQ(NotAfterOf(out_ + "/alice"), soon_.not_after);
}

TEST_F(FolderTest, OverwriteNothing) {
  ASSERT_TRUE(Make().ok());
  const std::string before = Read(out_ + "/ca/ca.key"), alice = Read(out_ + "/alice/tls.pem");
  EXPECT_TRUE(absl::IsAlreadyExists(Make()));
  EXPECT_TRUE(absl::IsAlreadyExists(AddFolder(out_, {kAlice, {}, soon_})));
  EXPECT_TRUE(absl::IsAlreadyExists(AddFolder(out_, {{Role::kAdmin, "ca", ""}, {}, soon_})));
  EXPECT_EQ(Read(out_ + "/ca/ca.key"), before);
  EXPECT_EQ(Read(out_ + "/alice/tls.pem"), alice);
  for (const auto& entry : std::filesystem::directory_iterator(base_))
    EXPECT_EQ(entry.path().filename(), "pki") << "left behind";
}

TEST_F(FolderTest, MakeNothingOfARequestThatCannotBe) {
  EXPECT_FALSE(MakeFolders(out_, soon_, {{{Role::kUser, "alice", ""}, {}, soon_}}).ok());
  EXPECT_FALSE(std::filesystem::exists(out_));
  ASSERT_TRUE(Make().ok());
  const std::pair<CertificateRequest, const char*> wrong[] = {
      {{{Role::kUser, "*", "p"}, {}, soon_}, "name = \"*\""},
      {{{Role::kUser, "../eve", "p"}, {}, soon_}, "name = \"../eve\""},
      {{{Role::kUser, "Eve", "p"}, {}, soon_}, "name = \"Eve\""},
      {{{Role::kUser, std::string(64, 'a'), "p"}, {}, soon_}, "at most 63"},
      {{{Role::kUser, "eve", "a/b"}, {}, soon_}, "project = \"a/b\""},
      {{{Role::kWorker, "w", "p"}, {}, soon_}, "a worker has none"},
      {{{Role::kWorker, "w", ""}, {"host"}, soon_}, "a worker has none"},
      {{{Role::kServer, "s", ""}, {"*.example.org"}, soon_}, "without *"},
      {{{Role::kServer, "s", ""}, {"a,URI:spiffe://tacc/admin/eve"}, soon_}, "give a name of a host"},
  };
  for (const auto& [request, message] : wrong) {
    const absl::Status status = AddFolder(out_, request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST_F(FolderTest, AreRenewedForTheSameHolder) {
  ASSERT_TRUE(Make().ok());
  const std::string before = Read(out_ + "/server/tls.pem");
  const auto renewed = RenewFolder(out_, "server", ValidFor(5, now_));
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(Describe(*renewed), "server server");
  EXPECT_NE(Read(out_ + "/server/tls.pem"), before);
  EXPECT_EQ(Mode(out_ + "/server/tls.pem"), 0600);
  EXPECT_THAT(HostsOf(out_ + "/server"), testing::ElementsAre("localhost", "::1", "10.0.0.1"));
  EXPECT_TRUE(CheckFolder(out_ + "/server", now_).ok());
  EXPECT_FALSE(RenewFolder(out_, "bob", soon_).ok());
}

TEST_F(FolderTest, AreLookedAtBeforeTheyAreUsed) {
  ASSERT_TRUE(Make().ok());
  const std::string folder = out_ + "/alice", path = folder + "/tls.pem";
  const auto problem = [&](std::time_t now) { return std::string(CheckFolder(folder, now).status().message()); };
  EXPECT_THAT(problem(soon_.not_after + 1), HasSubstr("expired"));
  EXPECT_THAT(problem(soon_.not_before - 1), HasSubstr("not valid yet"));
  chmod(path.c_str(), 0644);
  EXPECT_THAT(problem(now_), HasSubstr("chmod 600"));
  chmod(path.c_str(), 0600);
  const std::string alice = Read(path), server = Read(out_ + "/server/tls.pem");
  const size_t end_of_key = alice.find("-----BEGIN CERTIFICATE");
  std::ofstream(path) << alice.substr(0, end_of_key) << server.substr(server.find("-----BEGIN CERTIFICATE"));
  EXPECT_THAT(problem(now_), HasSubstr("its key is of another certificate"));
  std::ofstream(path) << alice.substr(0, end_of_key);
  EXPECT_THAT(problem(now_), HasSubstr("no certificate"));
  std::ofstream(path) << alice;
  const auto other = Authority::Make(soon_);
  std::ofstream(folder + "/ca.crt") << *other->CertificatePem();
  EXPECT_THAT(problem(now_), HasSubstr("none of the authorities"));
}

// A certificate whose names are not what Issue would write.
std::string CertificateWith(const char* names, const char* organization) {
  const KeyPointer key(EVP_EC_gen("P-256"));
  const CertificatePointer certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  X509_set_pubkey(certificate.get(), key.get());
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 60);
  if (organization[0] != '\0') {
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "O", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(organization), -1, -1, 0);
  }
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate.get(), certificate.get(), nullptr, nullptr, 0);
  if (names[0] != '\0') {
    const std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>> extension(
        X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, names));
    X509_add_ext(certificate.get(), extension.get(), -1);
  }
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const BioPointer out(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(out.get(), certificate.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

TEST(ReadPrincipal, TakesOneNameOfOurs) {
  const auto read = [](const char* names, const char* organization = "") {
    return ReadPrincipal(CertificateWith(names, organization), std::time(nullptr));
  };
  EXPECT_EQ(Describe(*read("URI:spiffe://tacc/worker/host-a")), "worker host-a");
  EXPECT_EQ(Describe(*read("DNS:x,URI:spiffe://tacc/user/bob", "p_1")), "user bob of project p_1");
  const std::pair<const char*, const char*> wrong[] = {
      {"", ""},
      {"DNS:tacc", ""},
      {"URI:spiffe://tacc/admin/a,URI:spiffe://tacc/admin/b", ""},
      {"URI:spiffe://other/admin/a", ""},
      {"URI:SPIFFE://tacc/admin/a", ""},
      {"URI:spiffe://tacc/admin", ""},
      {"URI:spiffe://tacc/admin/", ""},
      {"URI:spiffe://tacc/admin/*", ""},
      {"URI:spiffe://tacc/admin/a/b", ""},
      {"URI:spiffe://tacc/admin/a%20b", ""},
      {"URI:spiffe://tacc/root/a", ""},
      {"URI:spiffe://tacc/user/bob", ""},
      {"URI:spiffe://tacc/user/bob", "*"},
      {"URI:spiffe://tacc/user/bob", "Some Inc."},
  };
  for (const auto& [names, organization] : wrong)
    EXPECT_TRUE(absl::IsUnauthenticated(read(names, organization).status())) << names << " " << organization;
  EXPECT_FALSE(ReadPrincipal("no certificate", std::time(nullptr)).ok());
}

TEST(IsWorker, IsTheNameAndNamesBelowIt) {
  const Principal worker = {Role::kWorker, "host-a", ""};
  for (const char* name : {"host-a", "host-a.cpu", "host-a.cuda-0"}) EXPECT_TRUE(IsWorker(worker, name)) << name;
  for (const char* name : {"", "host", "host-b", "host-a-cpu", "host-aa.cpu"})
    EXPECT_FALSE(IsWorker(worker, name)) << name;
  EXPECT_FALSE(IsWorker({Role::kAdmin, "host-a", ""}, "host-a"));
}

TEST(Access, DeniesByDefault) {
  const Principal admin = {Role::kAdmin, "a", ""}, viewer = {Role::kViewer, "v", ""};
  EXPECT_TRUE(MayCall(admin, "/tacc.v1.CoordinatorService/Shutdown").ok());
  const absl::Status refused = MayCall(viewer, "/tacc.v1.CoordinatorService/Shutdown");
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(refused.message(), "viewer v may not end the coordinator (Shutdown): that may only admin");
  for (const char* method : {"", "/", "/tacc.v1.CoordinatorService/", "/tacc.v1.CoordinatorService/Get/",
                             "tacc.v1.CoordinatorService/Get", "/tacc.v1.coordinatorservice/Get"})
    EXPECT_TRUE(absl::IsUnimplemented(MayCall(admin, method))) << method;
}

TEST(RolesPage, IsOfTheTable) {
  std::ifstream in("docs/roles.md");
  std::stringstream page;
  page << in.rdbuf();
  ASSERT_TRUE(in.good());
  EXPECT_EQ(WithTable(page.str()), page.str()) << "docs/roles.md is stale: run `ninja -C build docs`";
  for (const Access& access : AccessTable()) EXPECT_THAT(page.str(), HasSubstr(std::string(access.what)));
}

}  // namespace
}  // namespace tacc::identity
