// The control socket: one JSON object a line in, one a line out (docs/model.md, "Control socket").
// The same commands, one a line, make a scenario file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "tools/gpusim/host/pod.h"
#include "tools/gpusim/host/runner.h"
#include "tools/gpusim/server/listener.h"

namespace gpusim {

class Control {
 public:
  // `pod` outlives this.
  explicit Control(Pod& pod) : pod_(pod) {}

  // The answer to one command, without a newline: {"ok": true, ...} or {"ok": false, "error": ...}.
  std::string run(std::string_view line);
  // Every line of a file; empty lines and those that start with # are skipped. The first that fails
  // ends it: kInvalidArgument with file, line number and reason.
  base::Result<void> run_file(const std::string& path);

 private:
  Pod& pod_;
};

class ControlSocket final : public PollSource {
 public:
  ControlSocket(Control& control, Listener listener)
      : control_(control), listener_(std::move(listener)) {}

  void add_poll_fds(std::vector<pollfd>& fds) override;
  void handle() override;

 private:
  struct Client {
    base::UniqueFd socket;
    std::string input;
    std::string output;
    bool closing = false;
  };
  void serve(Client& client);
  void take_lines(Client& client);

  Control& control_;
  Listener listener_;
  std::vector<Client> clients_;
};

// Connects to the control socket of `directory`, sends one command and returns the answer.
// kNotFound when nobody listens there, kTimeout after five seconds.
base::Result<std::string> control_once(const std::string& directory, const std::string& command);

}  // namespace gpusim
