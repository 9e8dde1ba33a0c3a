// A coordinator with TLS, against clients that it must not serve: each method that it has, by reflection, with each bad
// certificate and each role that may not call it.
#include "coordinator/testing/access_test.h"

#include <openssl/ssl.h>

#include <mutex>
#include <thread>

#include "identity/access.h"

namespace tacc::coordinator {
namespace {

using identity::Role;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRotations = 20;
// A file's time of change tells gRPC whether it has read one file; it counts in seconds.
constexpr auto kBetweenRotations = std::chrono::milliseconds(1100);

TEST_F(AccessTest, EveryMethodHasARowAndEveryRowIsAMethod) {
  std::set<std::string> rows;
  for (const identity::Access& access : identity::AccessTable()) rows.insert(std::string(access.method));
  if (!HasNewReflection()) EXPECT_EQ(rows.erase(kNewReflection), 1U);
  EXPECT_EQ(Methods(Connect("admin")), rows);
}

TEST_F(AccessTest, BadCertificatesCallNothing) {
  const v1::Job job = Submit("alice", "toy");
  const std::string admin = ReadFile(Folder("admin") + "/tls.pem");
  const auto issue = [&](const std::string& name, const identity::Validity& validity) {
    EXPECT_TRUE(identity::AddFolder(pki_, {{Role::kAdmin, name, ""}, {}, validity}).ok());
  };
  issue("expired", {now_ - 7200, now_ - 3600});
  issue("early", {now_ + 3600, now_ + 7200});
  const auto stranger = identity::Authority::Make(identity::ValidFor(2, now_));
  const auto foreign = stranger->Issue({{Role::kAdmin, "admin", ""}, {}, identity::ValidFor(1, now_)});
  MakeFolder("foreign", "admin", *foreign);
  // The signature's last whole bytes.
  std::string altered = admin;
  char& byte = altered[altered.find("\n-----END CERTIFICATE") - 12];
  byte = byte == 'A' ? 'B' : 'A';
  MakeFolder("altered", "admin", altered);

  std::vector<std::pair<std::string, std::shared_ptr<grpc::Channel>>> strangers;
  for (const char* name : {"expired", "early", "foreign", "altered"}) strangers.emplace_back(name, Connect(name));
  strangers.emplace_back("plaintext", grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));

  v1::GetRequest request;
  request.set_job(job.id());
  const std::set<std::string> methods = Methods(Connect("admin"));
  ASSERT_GT(methods.size(), 15U);
  const std::string before = State();
  for (const auto& [name, channel] : strangers) {
    for (const std::string& method : methods) {
      // For those with a job in front it is this one.
      const grpc::Status status = Call(channel, method, request.SerializeAsString());
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << name << " " << method << status.error_message();
    }
  }
  EXPECT_EQ(State(), before);
}

TEST_F(AccessTest, RolesCallWhatTheTableSays) {
  const v1::Job job = Submit("alice", "toy");
  v1::GetRequest request;
  request.set_job(job.id());
  const std::set<std::string> methods = Methods(Connect("admin"));
  const std::string before = State();
  int num_refused = 0;
  for (const char* name : {"server", "admin", "alice", "viewer", "worker", "metrics"}) {
    const auto principal = identity::CheckFolder(Folder(name), now_);
    ASSERT_TRUE(principal.ok()) << principal.status();
    const std::shared_ptr<grpc::Channel> channel = Connect(name);
    for (const std::string& method : methods) {
      if (identity::FindAccess(method)->Allows(principal->role)) continue;
      const grpc::Status status = Call(channel, method, request.SerializeAsString());
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << name << " " << method;
      ++num_refused;
    }
    EXPECT_EQ(Call(channel, "/tacc.v1.CoordinatorService/Nothing", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_EQ(State(), before);
  EXPECT_GT(num_refused, 40);
  // What is allowed comes to its handler, which says something else.
  const std::set<std::string> streams = {"/grpc.health.v1.Health/Watch", kReflection, kNewReflection};
  for (const char* name : {"server", "viewer", "metrics", "alice", "worker", "admin"}) {
    const Role role = identity::CheckFolder(Folder(name), now_)->role;
    const std::shared_ptr<grpc::Channel> channel = Connect(name);
    for (const std::string& method : methods) {
      if (!identity::FindAccess(method)->Allows(role) || streams.count(method) != 0) continue;
      const grpc::StatusCode code = Call(channel, method, "").error_code();
      EXPECT_NE(code, grpc::StatusCode::PERMISSION_DENIED) << name << " " << method;
      EXPECT_NE(code, grpc::StatusCode::UNAUTHENTICATED) << name << " " << method;
      EXPECT_NE(code, grpc::StatusCode::UNAVAILABLE) << name << " " << method;
    }
  }
  EXPECT_EQ(num_stops_, 1) << "by the administrator's Shutdown";
}

TEST_F(AccessTest, AUserSeesAndChangesJobsOfItsProject) {
  const v1::Job job = Submit("alice", "toy");
  EXPECT_EQ(job.project(), "vision");
  EXPECT_EQ(Submit("admin", "toy").project(), "");
  const std::string before = State();
  v1::GetRequest request;  // The job is the first field of each.
  for (const std::string& id : {job.id(), std::string("toy")}) {
    request.set_job(id);
    for (const char* method : {"Get", "Cancel", "Watch", "Logs", "GetEndpoints"}) {
      const grpc::Status status =
          Call(Connect("bob"), absl::StrCat("/tacc.v1.CoordinatorService/", method), request.SerializeAsString());
      EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << method;
      EXPECT_EQ(status.error_message(), "no job " + id) << method;
    }
  }
  EXPECT_EQ(State(), before);
  const auto ids = [this](const std::string& who) {
    grpc::ClientContext context;
    v1::ListResponse response;
    EXPECT_TRUE(Client(who)->List(&context, v1::ListRequest(), &response).ok());
    std::vector<std::string> found;
    for (const v1::Job& one : response.jobs()) found.push_back(one.id());
    return found;
  };
  EXPECT_THAT(ids("bob"), IsEmpty());
  EXPECT_THAT(ids("alice"), testing::ElementsAre("toy-1"));
  EXPECT_THAT(ids("viewer"), testing::ElementsAre("toy-2", "toy-1"));
  EXPECT_THAT(ids("admin"), testing::ElementsAre("toy-2", "toy-1"));
  // A name is the newest of those that one sees; a request id is its project's.
  request.set_job("toy");
  grpc::ClientContext context;
  v1::GetResponse newest;
  ASSERT_TRUE(Client("alice")->Get(&context, request, &newest).ok());
  EXPECT_EQ(newest.job().id(), "toy-1");
  EXPECT_EQ(Submit("bob", "toy").id(), "toy-3");
  EXPECT_EQ(Submit("alice", "toy").id(), "toy-1");

  // It is stored.
  server_.reset();
  auto server = Server::Start(options_, &failpoints_, [](const absl::Status&) {});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_THAT(ids("bob"), testing::ElementsAre("toy-3"));
  EXPECT_THAT(ids("alice"), testing::ElementsAre("toy-1"));
}

TEST_F(AccessTest, AWorkerIsWhoItsCertificateSays) {
  const auto attach = [this](const std::string& name) {
    const auto stub = v1::WorkerService::NewStub(Connect("worker"));
    grpc::ClientContext context;
    const auto stream = stub->Attach(&context);
    v1::AttachRequest request;
    request.mutable_register_()->set_name(name);
    request.mutable_register_()->set_instance("i");
    request.mutable_register_()->set_version("0.1.0");
    request.mutable_register_()->set_protocol(protocol::kAttachProtocol);
    request.mutable_register_()->set_advertise("127.0.0.1");
    v1::DeviceProfile* device = request.mutable_register_()->mutable_device();
    device->set_name("cpu");
    device->set_kind("cpu");
    device->set_threads(1);
    device->set_memory_bytes(1 << 30);
    (*device->mutable_matmul_flops_per_second())["f32"] = 1e10;
    stream->Write(request);
    v1::AttachResponse response;
    const bool is_welcome = stream->Read(&response) && response.has_registered();
    if (is_welcome) context.TryCancel();  // Otherwise it has ended, with a reason.
    const grpc::Status status = stream->Finish();
    return is_welcome ? std::string("welcome") : status.error_message();
  };
  EXPECT_EQ(attach("worker"), "welcome");
  EXPECT_EQ(attach("worker.cpu"), "welcome");
  for (const char* name : {"other", "worker-cpu", "workers", ""})
    EXPECT_THAT(attach(name), HasSubstr("worker worker cannot be worker ")) << name;
}

TEST_F(AccessTest, AWorkerSpeaksForItsOwnRanksAlone) {
  ASSERT_TRUE(identity::AddFolder(pki_, {{Role::kWorker, "other", ""}, {}, identity::ValidFor(2, now_)}).ok());
  FakeDaemon worker("worker"), other("other");
  ASSERT_TRUE(worker.ConnectBy(Connect("worker")).ok());
  v1::GetRequest request;
  request.set_job(Submit("alice", "toy").id());
  const v1::RankId id = worker.WaitForRank(1);
  worker.Ready(id, 0);
  worker.Step(id, 1);
  ASSERT_TRUE(WaitUntil([&] { return worker.NumUnacknowledged() == 0; }));

  ASSERT_TRUE(other.ConnectBy(Connect("other")).ok());
  other.Step(id, 9);
  other.Checkpoint(id, 9);
  other.Finish(id, 10);
  ASSERT_TRUE(WaitUntil([&] { return other.NumUnacknowledged() == 0; }));
  grpc::ClientContext context;
  v1::GetResponse response;
  ASSERT_TRUE(Client("alice")->Get(&context, request, &response).ok());
  EXPECT_EQ(response.job().phase(), v1::PHASE_RUNNING) << response.job().reason();
  EXPECT_EQ(response.job().step(), 1);
  EXPECT_EQ(response.job().checkpoints_size(), 0);
}

TEST_F(AccessTest, AWorkerReadsUploadsOfItsOwnJobsAlone) {
  constexpr char kSha256[] = "b5d4045c3f466fa91fe2cc6abe79232a1a57cdf104f7a26e716e0a1e2789df78";  // Of "ABC".
  v1::PutFolderRequest folder;
  folder.add_files()->set_name("config.json");
  folder.mutable_files(0)->set_sha256(kSha256);
  folder.mutable_files(0)->set_size_bytes(3);
  v1::PutFolderResponse put;
  grpc::ClientContext put_folder, put_file;
  v1::PutFileRequest file;
  file.set_sha256(kSha256);
  file.set_size_bytes(3);
  file.set_data("ABC");
  v1::PutFileResponse ignored;
  const auto user = Client("alice");
  const auto writer = user->PutFile(&put_file, &ignored);
  writer->Write(file);
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
  ASSERT_TRUE(user->PutFolder(&put_folder, folder, &put).ok());
  ASSERT_TRUE(put.whole());

  ASSERT_TRUE(identity::AddFolder(pki_, {{Role::kWorker, "work", ""}, {}, identity::ValidFor(2, now_)}).ok());
  // Why it does not get the list and the file; empty: it does.
  const auto refused = [&](const std::string& who, const std::string& id, const std::string& sha256) {
    const auto stub = v1::WorkerService::NewStub(Connect(who));
    v1::GetUploadRequest list;
    list.set_id(id);
    v1::GetUploadResponse files;
    v1::GetFileRequest one;
    one.set_sha256(sha256);
    v1::GetFileResponse piece;
    grpc::ClientContext get_upload, get_file;
    const grpc::Status listed = stub->GetUpload(&get_upload, list, &files);
    const auto reader = stub->GetFile(&get_file, one);
    const bool has_data = reader->Read(&piece);
    const grpc::Status read = reader->Finish();
    EXPECT_EQ(listed.error_code(), read.error_code()) << listed.error_message() << " " << read.error_message();
    EXPECT_EQ(files.files_size() == 1, listed.ok());
    EXPECT_EQ(has_data, read.ok());
    return listed.error_message();
  };
  const auto is_refused = HasSubstr("no job for which this worker is to fetch a folder names upload ");
  EXPECT_THAT(refused("worker", put.id(), kSha256), is_refused) << "before there is a job";
  v1::SubmitRequest submit;
  *submit.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
  submit.mutable_spec()->mutable_model()->set_path("upload:" + put.id());
  submit.set_request_id("r");
  v1::SubmitResponse submitted;
  grpc::ClientContext submits;
  ASSERT_TRUE(user->Submit(&submits, submit, &submitted).ok());
  EXPECT_THAT(refused("worker", put.id(), kSha256), is_refused) << "before it is placed";
  // It takes long to fetch: the job waits, and gives its worker back meanwhile.
  FakeDaemon worker("worker.cpu");
  v1::PathProblem* problem = worker.found.add_problems();
  problem->set_kind(v1::PATH_PROBLEM_KIND_UNAVAILABLE);
  problem->set_message("the upload is on its way");
  ASSERT_TRUE(worker.ConnectBy(Connect("worker")).ok());
  v1::GetRequest get;
  get.set_job("toy");
  EXPECT_TRUE(WaitUntil([&] {
    grpc::ClientContext context;
    v1::GetResponse response;
    EXPECT_TRUE(user->Get(&context, get, &response).ok());
    return absl::StrContains(response.job().reason(), "the upload is on its way; it waits and tries again");
  }));
  EXPECT_EQ(refused("worker", put.id(), kSha256), "");
  const std::string zeros(64, '0');
  EXPECT_THAT(refused("worker", zeros, zeros), is_refused);
  EXPECT_THAT(refused("work", put.id(), kSha256), is_refused) << "its name begins alike";
  v1::CancelRequest cancel;
  cancel.set_job("toy");
  v1::CancelResponse cancelled;
  grpc::ClientContext cancels;
  ASSERT_TRUE(user->Cancel(&cancels, cancel, &cancelled).ok());
  EXPECT_THAT(refused("worker", put.id(), kSha256), is_refused) << "it has ended";
}

// A handshake by OpenSSL, with the newest version that it may have. The server's certificate in PEM; empty: refused.
std::string Handshake(const std::string& address, const std::string& folder, int newest) {
  const std::unique_ptr<SSL_CTX, identity::OpensslFree<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_security_level(context.get(), 0);  // Old versions are among what it offers.
  SSL_CTX_set_min_proto_version(context.get(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(context.get(), newest);
  SSL_CTX_use_certificate_chain_file(context.get(), (folder + "/tls.pem").c_str());
  SSL_CTX_use_PrivateKey_file(context.get(), (folder + "/tls.pem").c_str(), SSL_FILETYPE_PEM);
  const std::unique_ptr<BIO, identity::OpensslFree<BIO_free_all>> connection(BIO_new_ssl_connect(context.get()));
  SSL* ssl = nullptr;
  BIO_get_ssl(connection.get(), &ssl);
  const unsigned char h2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl, h2, sizeof(h2));
  BIO_set_conn_hostname(connection.get(), address.c_str());
  if (BIO_do_connect(connection.get()) != 1 || BIO_do_handshake(connection.get()) != 1) return "";
  const identity::CertificatePointer certificate(SSL_get1_peer_certificate(ssl));
  const identity::BioPointer out(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(out.get(), certificate.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

TEST_F(AccessTest, OldVersionsOfTlsAreRefused) {
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION})
    EXPECT_EQ(Handshake(server_->address(), Folder("admin"), version), "") << version;
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION})
    EXPECT_NE(Handshake(server_->address(), Folder("admin"), version), "") << version;
}

TEST_F(AccessTest, ClientsRefuseWhoIsNotTheServer) {
  const auto get_version = [this](const identity::Tls& tls) {
    grpc::ClientContext context;
    v1::GetVersionResponse response;
    return v1::CoordinatorService::NewStub(identity::MakeChannel(server_->address(), tls, {}))
        ->GetVersion(&context, {}, &response);
  };
  EXPECT_TRUE(get_version({Folder("admin"), ""}).ok());
  EXPECT_TRUE(get_version({Folder("admin"), "localhost"}).ok());
  EXPECT_EQ(get_version({Folder("admin"), "elsewhere"}).error_code(), grpc::StatusCode::UNAVAILABLE);
  // One that trusts another authority.
  const auto other = identity::Authority::Make(identity::ValidFor(2, now_));
  MakeFolder("doubter", "admin", ReadFile(Folder("admin") + "/tls.pem"));
  std::ofstream(Folder("doubter") + "/ca.crt") << *other->CertificatePem();
  EXPECT_EQ(get_version({Folder("doubter"), ""}).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AccessTest, CertificatesRotateUnderLoad) {
  options_.call_limits.calls_per_second = 1e6;
  ASSERT_NO_FATAL_FAILURE(Start());
  std::atomic<bool> ends{false};
  std::atomic<int> num_calls{0}, num_failed{0};
  std::mutex mutex;
  std::string first_failure;
  const auto call = [&](v1::CoordinatorService::Stub* stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::ListResponse response;
    const grpc::Status status = stub->List(&context, v1::ListRequest(), &response);
    ++num_calls;
    if (status.ok()) return;
    ++num_failed;
    const std::lock_guard<std::mutex> lock(mutex);
    if (first_failure.empty()) first_failure = status.error_message();
  };
  std::vector<std::thread> load;
  load.emplace_back([&] {
    const auto stub = Client("admin");
    while (!ends) call(stub.get());
  });
  for (const char* name : {"admin", "alice"}) {
    load.emplace_back([&, name] {
      while (!ends) call(Client(name).get());
    });
  }
  for (int i = 0; i < kRotations; ++i) {
    std::this_thread::sleep_for(kBetweenRotations);
    for (const char* name : {"server", "admin", "alice"}) {
      const auto renewed = identity::RenewFolder(pki_, name, identity::ValidFor(2, now_));
      EXPECT_TRUE(renewed.ok()) << renewed.status();
    }
    const std::string newest = ReadFile(Folder("server") + "/tls.pem");
    EXPECT_TRUE(WaitUntil([&] {
      const std::string shown = Handshake(server_->address(), Folder("admin"), TLS1_3_VERSION);
      return !shown.empty() && absl::StrContains(newest, shown);
    })) << "rotation "
        << i;
  }
  ends = true;
  for (std::thread& thread : load) thread.join();
  EXPECT_EQ(num_failed, 0) << "of " << num_calls << ": " << first_failure;
  EXPECT_GT(num_calls, 20 * kRotations);
}

TEST_F(AccessTest, ACoordinatorTakesNoFolderButAServers) {
  const auto start = [this](const std::string& folder) {
    ServerOptions options = options_;
    options.state_dir = dir_.path() + "/state2";
    options.tls_dir = folder;
    return std::string(Server::Start(options, &failpoints_, [](const absl::Status&) {}).status().message());
  };
  EXPECT_THAT(start(Folder("admin")), HasSubstr("is of admin admin; a coordinator takes a server's"));
  EXPECT_THAT(start(Folder("nowhere")), HasSubstr("cannot read"));
  ASSERT_TRUE(identity::AddFolder(pki_, {{Role::kServer, "nameless", ""}, {}, identity::ValidFor(2, now_)}).ok());
  EXPECT_THAT(start(Folder("nameless")), HasSubstr("no name of a host"));
}

}  // namespace
}  // namespace tacc::coordinator
