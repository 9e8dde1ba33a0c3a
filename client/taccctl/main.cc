#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/taccctl/taccctl.h"
#include "machine/clock.h"
#include "machine/exit_code.h"
#include "machine/machine.h"

extern char** environ;

namespace {

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

int Columns() {
  struct winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A pipe without a reader is in error at once, also while nothing is written to it.
void EndWithReader() {
  std::thread([] {
    struct pollfd out = {STDOUT_FILENO, 0, 0};
    while (poll(&out, 1, -1) < 0) {
    }
    if ((out.revents & POLLERR) == 0) return;
    signal(SIGPIPE, SIG_DFL);
    kill(getpid(), SIGPIPE);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  tacc::KeepStandardStreams();
  // Signals are taken by one thread; blocked before any other thread exists. A reader that went away is an error of the
  // stream, not of the process.
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Outlives main's frame: the thread waits in it until the process ends.
  auto* interrupt = new tacc::client::Interrupt();
  std::thread([interrupt, signals] {
    int signal = 0;
    while (sigwait(&signals, &signal) == 0) interrupt->Signal(tacc::SteadySeconds());
  }).detach();
  std::error_code error;
  tacc::client::Context context{argv[0],
                                std::cin,
                                std::cout,
                                std::cerr,
                                isatty(STDERR_FILENO) == 1,
                                Columns(),
                                Environment(),
                                std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string(),
                                *interrupt,
                                EndWithReader,
                                [] { _exit(tacc::kExitError); }};
  const int code = tacc::client::RunTaccctl(std::vector<std::string>(argv + 1, argv + argc), context);
  std::cout.flush();
  // Not through static destructors: gRPC's threads may still hold on to them.
  _exit(code);
}
