// SPDX-License-Identifier: Apache-2.0
#include "daemon/ctl/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace sluice::ctl {
namespace {

// The words that may follow one command.
std::string Words(const CLI::App& app) {
  std::string words;
  const auto add = [&words](const std::string& word) {
    words += (words.empty() ? "" : " ") + word;
  };
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    add(command->get_name());
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) add("--" + name);
  }
  return words;
}

void AddCases(const CLI::App& app, const std::string& path, std::string& out) {
  out += fmt::format("    \"{}\") words=\"{}\" ;;\n", path, Words(app));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    AddCases(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), out);
  }
}

constexpr std::string_view kHead = R"(# bash completion for sluicectl: source it, or install it as
# /usr/share/bash-completion/completions/sluicectl
_sluicectl() {
  local current=${COMP_WORDS[COMP_CWORD]} path="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --socket) ((i++)) ;;
      -*) ;;
      *) path+="${path:+ }${COMP_WORDS[i]}" ;;
    esac
  done
  case $path in
    get|set)
      words=$(sluicectl config show 2>/dev/null | awk 'NR > 1 { print $1 }')
      COMPREPLY=($(compgen -W "$words" -- "$current"))
      return ;;
  esac
  case $path in
)";

constexpr std::string_view kTail = R"(  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _sluicectl sluicectl
)";

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::string out(kHead);
  AddCases(app, "", out);
  return out + std::string(kTail);
}

}  // namespace sluice::ctl
