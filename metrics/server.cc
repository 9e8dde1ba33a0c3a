#include "metrics/server.h"

#include <CivetServer.h>
#include <prometheus/text_serializer.h>

#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tacc::metrics {
namespace {

// A connection that asks nothing holds a thread for so long, so tens of them cost whoever asks no more than that.
constexpr char kThreads[] = "32";
constexpr char kRequestMilliseconds[] = "1000";

struct Answer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class Handler : public CivetHandler {
 public:
  explicit Handler(std::function<Answer()> answer) : answer_(std::move(answer)) {}
  bool handleGet(CivetServer* server, mg_connection* connection) override {
    const Answer answer = answer_();
    const char* reason = answer.code == 200 ? "OK" : "Service Unavailable";
    mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
              answer.code, reason, answer.type.c_str(), answer.body.size());
    mg_write(connection, answer.body.data(), answer.body.size());
    return true;
  }

 private:
  const std::function<Answer()> answer_;
};

}  // namespace

struct Server::Impl {
  std::vector<std::unique_ptr<Handler>> handlers;
  std::unique_ptr<CivetServer> server;  // Ends before the handlers.
};

Server::Server() : impl_(std::make_unique<Impl>()) {}

Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address, Collect collect, Check healthy,
                                                      Check ready) {
  std::unique_ptr<Server> result(new Server());
  Impl& impl = *result->impl_;
  const std::vector<std::string> options = {
      "listening_ports",   address, "num_threads", kThreads, "request_timeout_ms", kRequestMilliseconds,
      "enable_keep_alive", "no"};
  try {
    impl.server = std::make_unique<CivetServer>(options);
  } catch (const std::exception&) {
    return absl::FailedPreconditionError(absl::StrCat("--metrics-listen ", address, ": cannot listen on ", address,
                                                      "; is it HOST:PORT of this machine, and is the port free?"));
  }
  auto serve = [&impl](const std::string& path, std::function<Answer()> answer) {
    impl.handlers.push_back(std::make_unique<Handler>(std::move(answer)));
    impl.server->addHandler(path, impl.handlers.back().get());
  };
  serve("/metrics", [collect = std::move(collect)] {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, collect());
    return Answer{200, "text/plain; version=0.0.4; charset=utf-8", text.str()};
  });
  auto serve_check = [&serve](const std::string& path, const char* good, Check check) {
    serve(path, [good, check = std::move(check)] {
      const absl::Status status = check();
      if (status.ok()) return Answer{200, "text/plain", absl::StrCat(good, "\n")};
      return Answer{503, "text/plain", absl::StrCat(status.message(), "\n")};
    });
  };
  serve_check("/healthz", "ok", std::move(healthy));
  serve_check("/readyz", "ready", std::move(ready));
  const std::vector<int> ports = impl.server->getListeningPorts();
  result->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports.empty() ? 0 : ports.front());
  return result;
}

}  // namespace tacc::metrics
