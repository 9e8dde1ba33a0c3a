// What TLS costs the metrics of many workers: each has a job of its own, whose rank reports steps as fast as the
// coordinator stores them, or RATE a second, and each job a client that watches; by TLS and in the clear, in turns. The
// coordinator is a process of its own, workers and clients are another. A line of JSON a round.
//
//     reports_bench [WORKERS] [STEPS] [ROUNDS] [RATE]
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/server.h"
#include "coordinator/testing/fake_daemon.h"
#include "identity/credentials.h"
#include "identity/folder.h"
#include "machine/testing/test_directory.h"

namespace tacc::coordinator {
namespace {

// Reports that a worker has on the way.
constexpr size_t kWindow = 32;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  _exit(1);
}

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void SleepUntil(double when) { std::this_thread::sleep_for(std::chrono::duration<double>(when - Seconds())); }

// In user mode and in the kernel.
double CpuSeconds(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  std::istringstream fields(text.str().substr(text.str().rfind(')') + 1));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A child that ends with `work`. Nothing of gRPC lives in the process that forks.
pid_t Fork(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child < 0) Fail("fork");
  if (child > 0) return child;
  work();
  _exit(0);
}

// Where a round's processes meet.
struct Place {
  explicit Place(bool tls) : is_tls(tls) {
    if (!tls) return;
    const identity::Validity validity = identity::ValidFor(2, std::time(nullptr));
    const absl::Status made =
        identity::MakeFolders(pki, validity,
                              {{{identity::Role::kServer, "server", ""}, {"localhost", "127.0.0.1"}, validity},
                               {{identity::Role::kAdmin, "admin", ""}, {}, validity},
                               {{identity::Role::kWorker, "worker", ""}, {}, validity}});
    if (!made.ok()) Fail(made.ToString());
  }

  const bool is_tls;
  const TestDirectory dir;
  const std::string pki = dir.path() + "/pki";
};

// Serves until `stop` has an end; tells its address by `told`.
void Serve(const Place& place, int told, int stop) {
  if (std::freopen("/dev/null", "w", stdout) == nullptr) Fail("/dev/null");  // Its log.
  ServerOptions options;
  options.version = "0";
  options.listen = "127.0.0.1:0";
  options.state_dir = place.dir.path() + "/state";
  options.plan_binary = place.dir.Script("tacc-plan", FakePlan(1));
  options.data_binary = place.dir.Script("tacc-data", FakeData());
  options.exposure = ServerOptions::Exposure::kInsecure;
  if (place.is_tls) options.tls_dir = place.pki + "/server";
  Failpoints failpoints;
  const auto server = Server::Start(options, &failpoints, [](const absl::Status& status) { Fail(status.ToString()); });
  if (!server.ok()) Fail(server.status().ToString());
  const std::string address = (*server)->address();
  if (write(told, address.data(), address.size()) != static_cast<ssize_t>(address.size())) Fail("write");
  close(told);
  char byte = 0;
  while (read(stop, &byte, 1) > 0) {
  }
}

class Load {
 public:
  // `rate`: steps a second of a worker; 0: as many as are stored.
  Load(const Place* place, std::string address, int workers, int steps, double rate)
      : place_(*place), address_(std::move(address)), num_workers_(workers), num_steps_(steps), rate_(rate) {}

  void Run(pid_t coordinator) const {
    std::vector<std::unique_ptr<FakeDaemon>> daemons;
    for (int i = 0; i < num_workers_; ++i) {
      daemons.push_back(std::make_unique<FakeDaemon>(absl::StrCat("worker.", i)));
      daemons.back()->version = "0";
      const grpc::Status status = daemons.back()->ConnectBy(Channel("worker"));
      if (!status.ok()) Fail(status.error_message());
    }
    const std::shared_ptr<grpc::Channel> client = Channel("admin");
    std::vector<std::string> jobs;
    for (int i = 0; i < num_workers_; ++i) jobs.push_back(Submit(client, i));
    std::vector<v1::RankId> ranks;
    for (const std::unique_ptr<FakeDaemon>& daemon : daemons) {
      ranks.push_back(daemon->WaitForRank(1));
      if (ranks.back().job().empty()) Fail("a job was not started");
      daemon->Ready(ranks.back(), 0);
    }
    const double start = Seconds(), cpu = CpuSeconds(coordinator);
    std::vector<std::thread> threads;
    for (const std::string& job : jobs) threads.emplace_back([this, client, job] { Watch(client, job); });
    for (int i = 0; i < num_workers_; ++i) {
      threads.emplace_back([this, start, i, daemon = daemons[i].get(), rank = ranks[i]] {
        const double phase = static_cast<double>(i) / num_workers_;  // They do not step together.
        for (int step = 1; step <= num_steps_; ++step) {
          if (rate_ > 0) SleepUntil(start + (step - 1 + phase) / rate_);
          daemon->WaitForFewer(kWindow);
          daemon->Step(rank, step);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = Seconds() - start, reports = static_cast<double>(num_workers_) * num_steps_;
    std::printf("{\"tls\": %s, \"reports_per_second\": %.0f, \"cpu_microseconds_per_report\": %.1f}\n",
                place_.is_tls ? "true" : "false", reports / seconds, 1e6 * (CpuSeconds(coordinator) - cpu) / reports);
    std::fflush(stdout);
  }

 private:
  // A connection of its own.
  std::shared_ptr<grpc::Channel> Channel(const std::string& name) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const identity::Tls tls = {place_.is_tls ? absl::StrCat(place_.pki, "/", name) : "", "", ""};
    return identity::MakeChannel(address_, tls, arguments);
  }

  std::string Submit(const std::shared_ptr<grpc::Channel>& client, int number) const {
    const std::string name = absl::StrCat("job", number);
    v1::SubmitRequest request;
    *request.mutable_spec() = TestSpec(name, absl::StrCat(place_.dir.path(), "/runs/", name), /*workers=*/1);
    request.mutable_spec()->mutable_train()->set_max_steps(num_steps_);
    v1::SubmitResponse response;
    grpc::ClientContext context;
    const grpc::Status status = v1::CoordinatorService::NewStub(client)->Submit(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
    return response.job().id();
  }

  // Until it has seen each step.
  void Watch(const std::shared_ptr<grpc::Channel>& client, const std::string& job) const {
    v1::WatchRequest request;
    request.set_job(job);
    grpc::ClientContext context;
    const auto stream = v1::CoordinatorService::NewStub(client)->Watch(&context, request);
    v1::WatchResponse response;
    int64_t seen = 0;
    while (seen < num_steps_ && stream->Read(&response)) {
      if (response.has_step()) seen = response.step().step();
    }
    if (seen < num_steps_) Fail(absl::StrCat("a watch ended at step ", seen));
    context.TryCancel();
    stream->Finish();
  }

  const Place& place_;
  const std::string address_;
  const int num_workers_, num_steps_;
  const double rate_;
};

void RunRound(bool tls, int workers, int steps, double rate) {
  const Place place(tls);
  int told[2], stop[2];
  if (pipe2(told, O_CLOEXEC) != 0 || pipe2(stop, O_CLOEXEC) != 0) Fail("pipe2");
  const pid_t coordinator = Fork([&] {
    close(stop[1]);
    Serve(place, told[1], stop[0]);
  });
  close(told[1]);
  std::string address;
  for (char byte = 0; read(told[0], &byte, 1) > 0;) address += byte;
  if (address.empty()) Fail("the coordinator has not started");
  const pid_t load = Fork([&] {
    close(stop[1]);
    Load(&place, address, workers, steps, rate).Run(coordinator);
  });
  int status = 0;
  waitpid(load, &status, 0);
  close(stop[1]);
  waitpid(coordinator, nullptr, 0);
  close(stop[0]);
  close(told[0]);
  if (status != 0) Fail("the load has failed");
}

}  // namespace
}  // namespace tacc::coordinator

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int workers = argument(1, 100), steps = argument(2, 200), rounds = argument(3, 5);
  const double rate = argc > 4 ? std::atof(argv[4]) : 0;
  for (int round = 0; round < 2 * rounds; ++round) tacc::coordinator::RunRound(round % 2 == 1, workers, steps, rate);
}
