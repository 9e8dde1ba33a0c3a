// What a command gets from the process: streams, environment, signals. main fills it in; tests give their own.
#ifndef TACC_CLIENT_TACCCTL_SESSION_CONTEXT_H_
#define TACC_CLIENT_TACCCTL_SESSION_CONTEXT_H_

#include <functional>
#include <istream>
#include <map>
#include <ostream>
#include <string>

#include "client/taccctl/session/interrupt.h"

namespace tacc::client {

struct Context {
  // How taccctl was called, for commands to paste.
  std::string program;
  // A job file given as "-".
  std::istream& in;
  // Data, and everything else.
  std::ostream& out;
  std::ostream& err;
  // A person watches: a progress line is drawn on `err`.
  bool err_is_terminal = false;
  // Width of the terminal.
  int columns = 80;
  // Environment variables.
  std::map<std::string, std::string> environment;
  // Folder of this binary; tacc-coordinator and the others are beside it.
  std::string binary_dir;
  Interrupt& interrupt;
  // From here on the process ends when nobody reads `out` any more, as SIGPIPE ends others: for commands that only show
  // what goes on elsewhere.
  std::function<void()> end_with_reader = [] {};
  // Ends the process as an interrupt does, from any thread: for what reads a file that may never end.
  std::function<void()> end_interrupted = [] {};

  // The variable's value, "" when it is not set.
  std::string Variable(const std::string& name) const {
    const auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  }

  // Where files of a moment go: $TMPDIR, or /tmp.
  std::string TemporaryFolder() const {
    const std::string folder = Variable("TMPDIR");
    return folder.empty() ? "/tmp" : folder;
  }
};

enum class OutputForm { kTable, kJson };

// Options that every command takes.
struct GlobalOptions {
  // Empty: TACC_ADDRESS, else what `taccctl up` started, else 127.0.0.1:7070.
  std::string address;
  // Empty: TACC_TLS_DIR, else without TLS.
  std::string tls_dir;
  // Empty: TACC_TOKEN_FILE, else none.
  std::string token_file;
  // Empty: TACC_TLS_SERVER_NAME, else the address's host.
  std::string tls_server_name;
  OutputForm form = OutputForm::kTable;
};

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_CONTEXT_H_
